"""Settings → Team: members, invitations, the account's name, the audit log."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from datetime import timedelta
from uuid import UUID

import attrs

from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.emails.sending import SUSPENDED
from mailsvc.dashboard.keys import KEYS
from mailsvc.dashboard.page import SWITCH, PageError, PageRequest, forbidden, not_found, page, section_app
from mailsvc.dashboard.safety import HOME
from mailsvc.dashboard.signin import mails
from mailsvc.dashboard.signin.completion import Authentication
from mailsvc.mail import csv_file
from mailsvc.mail.address import AddressError, parse_mailbox
from mailsvc.net import allow_list
from mailsvc.store.people.api_keys import Keys, KeyView
from mailsvc.store.people.operator_access import OperatorAccesses
from mailsvc.store.people.roles import NAMES, ROLES, SUMMARIES, Role, permits

SETTINGS = f"{HOME}/settings"
INVITED = timedelta(days=7)
PAGE = 50
ACCESSES = 20  # of the operator
_DONE = {
    "invited": "Invitation sent.",
    "withdrawn": "Invitation revoked.",
    "removed": "Member removed.",
    "removed-keys": "Member removed and the selected API keys revoked.",
    "role": "Role changed.",
    "changed": "Settings saved.",
    "last": "An account needs at least one admin.",
}


@attrs.frozen
class Entered:
    """The form of the account as it was filled in. `networks`: one in each line."""

    name: str
    mfa: bool
    networks: str

    def read(self, request: PageRequest) -> tuple[list[str], dict[str, str]]:
        """The networks, and what is wrong by field."""
        networks, errors = [], {}
        if not self.name:
            errors["name"] = "Enter an account name."
        if self.mfa and not request.user_session.second_factor:
            errors["mfa"] = "Set up two-factor authentication for yourself first."
        try:
            networks = [allow_list.read(line) for line in self.networks.split()]
        except ValueError as wrong:
            return [], errors | {"networks": f"These {wrong}."}
        if len(networks) > allow_list.MOST:
            errors["networks"] = f"Enter at most {allow_list.MOST} networks."
        elif not allow_list.allows(request.address, networks):
            errors["networks"] = f"Your own address, {request.address}, must be among them."
        return networks, errors


@attrs.define(eq=False)
class MemberPages:
    app = section_app()
    context: PageContext
    authentication: Authentication
    keys: Keys
    accesses: OperatorAccesses

    @page(app, SETTINGS, access="member")
    async def show(self, request: PageRequest) -> bytes:
        return await self._shown(request)

    async def _shown(self, request: PageRequest, status: int = 200, **values: object) -> bytes:
        shown: dict[str, object] = {
            "errors": {},
            "email": "",
            "chosen": "developer",
            "link": "",
            "done": _DONE.get(request.query("done"), ""),
        }
        shown["refused"] = request.query("done") == "last"
        session = request.user_session
        shown["entered"] = Entered(session.account or "", bool(session.mfa_required), "\n".join(session.networks or ()))
        return request.render(
            "settings/members.html",
            status,
            members=await self.context.users.members(request.account_id),
            invitations=await self.context.sessions.invitations(request.account_id) if request.may("administer") else [],
            roles=NAMES,
            summaries=SUMMARIES,
            **shown | values,
        )

    @page(app, f"{SETTINGS}/account", "POST", access="administer", reauthenticate=True)
    async def account(self, request: PageRequest) -> bytes:
        entered = Entered(request.single_line("name")[:100], request.field("mfa") == "on", request.field("networks"))
        networks, errors = entered.read(request)
        if errors:
            return await self._shown(request, 422, errors=errors, entered=entered)
        said = ", ".join([entered.name, f"second factor {'required' if entered.mfa else 'not required'}", *networks])
        entry = request.audit_entry("account changed", said)
        await self.context.users.change_account(request.account_id, entered.name, entered.mfa, networks, [entry])
        return request.redirect(SETTINGS, done="changed")

    @page(app, SWITCH, "POST", access="member")
    async def switch(self, request: PageRequest) -> bytes:
        account_id = request.uuid(request.field("account"), "account")
        if account_id not in [account.account_id for account in await self.context.users.accounts(request.user_session.user_id)]:
            raise not_found("account")
        await self.context.sessions.show(request.user_session.hash, account_id)
        return request.redirect(HOME)

    # Members

    @page(app, f"{SETTINGS}/invite", "POST", access="administer", reauthenticate=True)
    async def invite(self, request: PageRequest) -> bytes:
        email, role = request.field("email").lower(), _role(request)
        try:
            email = parse_mailbox(email).address.lower()
        except AddressError:
            return await self._shown(request, 422, errors={"email": "Enter a valid email address."}, email=email, chosen=role)
        if request.user_session.suspended:  # the email shows the account's name, which its admins choose
            return await self._shown(request, 422, errors={"email": SUSPENDED}, email=email, chosen=role)
        if email in [member.email for member in await self.context.users.members(request.account_id)]:
            return await self._shown(request, 422, errors={"email": "This person is already a member."}, email=email, chosen=role)
        refused = await self.authentication.throttled([("invite", str(request.account_id)), ("mail", email)])
        if refused is not None:
            errors = {"email": refused.message.replace("attempts", "invitations")}
            return await self._shown(request, 429, errors=errors, email=email, chosen=role)
        entry = request.audit_entry("member invited", f"{email} as {role}")
        sessions, by = self.context.sessions, request.user_session.user_id
        secret = await sessions.make_link("invite", email, INVITED, request.account_id, role, by, lines=[entry])
        link = self.authentication.link(f"{HOME}/invitation", secret)
        if not self.context.sends_email:
            return await self._shown(request, link=link)
        self.authentication.send_later(email, mails.invitation(request.user_session.account or "", request.user_session.email, link))
        return request.redirect(SETTINGS, done="invited")

    @page(app, f"{SETTINGS}/invitations/<text>/withdraw", "POST", access="administer")
    async def withdraw(self, request: PageRequest, text: str) -> bytes:
        id_, sessions = request.uuid(text, "invitation"), self.context.sessions
        found = next((one for one in await sessions.invitations(request.account_id) if one.id == id_), None)
        if found is None or not await sessions.withdraw(
            request.account_id, id_, [request.audit_entry("invitation revoked", f"{found.email} as {found.role}")]
        ):
            raise not_found("invitation")
        return request.redirect(SETTINGS, done="withdrawn")

    @page(app, f"{SETTINGS}/members/<text>/role", "POST", access="administer", reauthenticate=True)
    async def role(self, request: PageRequest, text: str) -> bytes:
        email, role = await self._member(request, text), _role(request)
        entry = request.audit_entry("role changed", f"{email} is {role}")
        if not await self.context.users.set_role(request.account_id, request.uuid(text, "member"), role, [entry]):
            return request.redirect(SETTINGS, done="last")
        keys = [] if permits(role, "administer") else await self._keys_of(request, text)
        others = request.uuid(text) != request.user_session.user_id  # those who demote themselves may not see keys any more
        if others and any(key.permission == "full_access" for key in keys):
            return request.redirect(KEYS, done="demoted")
        return request.redirect(SETTINGS, done="role")

    # Removing a member. Their API keys keep working unless they are revoked, since apps may depend on them.

    @page(app, f"{SETTINGS}/members/<text>/remove", access="member", reauthenticate=True)
    async def removal(self, request: PageRequest, text: str) -> bytes:
        self._may_remove(request, text)
        email, keys = await self._member(request, text), await self._keys_of(request, text)
        return request.render(
            "settings/remove.html", email=email, keys=keys, leaves=request.uuid(text) == request.user_session.user_id, path=request.path
        )

    @page(app, f"{SETTINGS}/members/<text>/remove", "POST", access="member", reauthenticate=True)
    async def remove(self, request: PageRequest, text: str) -> bytes:
        """Remove a member (admins) or leave the account. The selected API keys are revoked in the same transaction."""
        self._may_remove(request, text)
        email, created = await self._member(request, text), {str(key.id): key for key in await self._keys_of(request, text)}
        chosen = [name.removeprefix("revoke:") for name in request.form if name.startswith("revoke:")]
        if not set(chosen) <= set(created):
            raise PageError(422, "Unknown API key", "One of the selected API keys no longer exists, so nothing was changed.")
        revoked = [created[text] for text in chosen]
        lines = [
            request.audit_entry("member removed", email),
            *(request.audit_entry("key revoked", f"{key.name} ({key.hint}…)") for key in revoked),
        ]
        if not await self.context.users.remove(request.account_id, request.uuid(text), lines, [key.id for key in revoked]):
            return request.redirect(SETTINGS, done="last")
        if revoked:
            self.keys.changed()
        if request.uuid(text) == request.user_session.user_id:
            return request.redirect(HOME)  # of another account, after signing in
        return request.redirect(SETTINGS, done="removed-keys" if revoked else "removed")

    def _may_remove(self, request: PageRequest, text: str) -> None:
        if not request.may("administer") and request.uuid(text, "member") != request.user_session.user_id:
            raise forbidden("Only account admins can do this.")

    async def _keys_of(self, request: PageRequest, text: str) -> Sequence[KeyView]:
        """The active API keys that a member created."""
        user_id = request.uuid(text, "member")
        return [key for key in (await self.keys.list(request.account_id))[0] if key.created_by == user_id]

    async def _member(self, request: PageRequest, text: str) -> str:
        user_id = request.uuid(text, "member")
        email = next((m.email for m in await self.context.users.members(request.account_id) if m.user_id == user_id), None)
        if email is None:
            raise not_found("member")
        return email

    # The audit log

    @page(app, f"{SETTINGS}/audit", access="administer")
    async def audit(self, request: PageRequest) -> bytes:
        after = request.uuid(request.query("after")) if request.query("after") else None
        entries, more = await self.context.audit.list(request.account_id, PAGE, after)
        older = f"{SETTINGS}/audit?after={entries[-1].id}" if more else None
        opened = await self.accesses.list(request.account_id, ACCESSES) if after is None else []
        return request.render("settings/audit.html", entries=entries, older=older, first=after is None, accesses=opened)

    @page(app, f"{SETTINGS}/audit.csv", access="administer")
    async def export(self, request: PageRequest) -> bytes:
        await request.write_audit_entry("audit log exported")
        await request.download("audit.csv", "text/csv; charset=utf-8", self._lines(request.account_id))
        return b""

    async def _lines(self, account_id: UUID) -> AsyncGenerator[bytes, None]:
        """The file, of which a page of the log is in memory."""
        yield csv_file.lines([("time", "who", "address", "action", "subject")])
        async for entries in self.context.audit.all(account_id):
            yield csv_file.lines((each.at.isoformat(), each.actor, each.address, each.action, each.subject) for each in entries)


def _role(request: PageRequest) -> Role:
    role = next((role for role in ROLES if role == request.field("role")), None)
    if role is None:
        raise PageError(422, "Unknown role", f"The role must be one of: {', '.join(NAMES.values())}.")
    return role
