"""Settings: who is a member of the account, what the account is called, and what was done in it."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import timedelta

import attrs

from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.csv_file import plain
from mailsvc.dashboard.keys import KEYS
from mailsvc.dashboard.page import Stop, Visit, area, forbidden, not_found, page
from mailsvc.dashboard.safety import HOME
from mailsvc.dashboard.signin import mails
from mailsvc.dashboard.signin.completion import Entrance
from mailsvc.mail.address import AddressError, parse_mailbox
from mailsvc.store.people.api_keys import Keys, KeyView
from mailsvc.store.people.users import Role

SETTINGS = f"{HOME}/settings"
INVITED = timedelta(days=7)
PAGE = 50
_DONE = {
    "invited": "Invitation sent.",
    "withdrawn": "Invitation revoked.",
    "removed": "Member removed.",
    "removed-keys": "Member removed and the selected API keys revoked.",
    "role": "Role changed.",
    "changed": "Settings saved.",
    "last": "An account needs at least one admin.",
}


@attrs.define(eq=False)
class Settings:
    app = area()
    desk: PageContext
    entrance: Entrance
    keys: Keys

    @page(app, SETTINGS)
    async def show(self, visit: Visit) -> bytes:
        return await self._shown(visit)

    async def _shown(self, visit: Visit, status: int = 200, **values: object) -> bytes:
        shown: dict[str, object] = {"errors": {}, "email": "", "link": "", "done": _DONE.get(visit.query("done"), "")}
        return visit.render(
            "settings/members.html",
            status,
            members=await self.desk.users.members(visit.account_id),
            invitations=await self.desk.sessions.invitations(visit.account_id) if visit.admin else [],
            accounts=await self.desk.users.accounts(visit.who.user_id),
            **shown | values,
        )

    @page(app, f"{SETTINGS}/account", "POST", who="admin", fresh=True)
    async def account(self, visit: Visit) -> bytes:
        name, required = visit.words("name")[:100], visit.field("mfa") == "on"
        if not name:
            return await self._shown(visit, 422, errors={"name": "Enter an account name."})
        if required and not visit.who.second_factor:
            return await self._shown(visit, 422, errors={"mfa": "Set up two-factor authentication for yourself first."})
        line = visit.line("account changed", f"{name}, second factor {'required' if required else 'not required'}")
        await self.desk.users.change_account(visit.account_id, name, required, [line])
        return visit.redirect(SETTINGS, done="changed")

    @page(app, f"{SETTINGS}/show", "POST")
    async def switch(self, visit: Visit) -> bytes:
        account_id = visit.uuid(visit.field("account"), "account")
        if account_id not in [account.account_id for account in await self.desk.users.accounts(visit.who.user_id)]:
            raise not_found("account")
        await self.desk.sessions.show(visit.who.hash, account_id)
        return visit.redirect(HOME)

    # Members

    @page(app, f"{SETTINGS}/invite", "POST", who="admin", fresh=True)
    async def invite(self, visit: Visit) -> bytes:
        email, role = visit.field("email").lower(), _role(visit)
        try:
            email = parse_mailbox(email).address.lower()
        except AddressError:
            return await self._shown(visit, 422, errors={"email": "Enter a valid email address."}, email=email)
        if email in [member.email for member in await self.desk.users.members(visit.account_id)]:
            return await self._shown(visit, 422, errors={"email": "This person is already a member."}, email=email)
        refused = await self.entrance.attempt([("invite", str(visit.account_id))])
        if refused is not None:
            return await self._shown(visit, 429, errors={"email": refused.sentence.replace("attempts", "invitations")}, email=email)
        line = visit.line("member invited", f"{email} as {role}")
        sessions, by = self.desk.sessions, visit.who.user_id
        secret = await sessions.make_link("invite", email, INVITED, visit.account_id, role, by, lines=[line])
        link = self.entrance.link(f"{HOME}/invitation", secret)
        if not self.desk.mails:
            return await self._shown(visit, link=link)
        self.entrance.write(email, mails.invitation(visit.who.account or "", visit.who.email, link))
        return visit.redirect(SETTINGS, done="invited")

    @page(app, f"{SETTINGS}/invitations/<text>/withdraw", "POST", who="admin")
    async def withdraw(self, visit: Visit, text: str) -> bytes:
        line = visit.line("invitation revoked")
        if not await self.desk.sessions.withdraw(visit.account_id, visit.uuid(text, "invitation"), [line]):
            raise not_found("invitation")
        return visit.redirect(SETTINGS, done="withdrawn")

    @page(app, f"{SETTINGS}/members/<text>/role", "POST", who="admin", fresh=True)
    async def role(self, visit: Visit, text: str) -> bytes:
        email, role = await self._member(visit, text), _role(visit)
        line = visit.line("role changed", f"{email} is {role}")
        if not await self.desk.users.set_role(visit.account_id, visit.uuid(text, "member"), role, [line]):
            return visit.redirect(SETTINGS, done="last")
        if role == "member" and visit.admin and any(k.permission == "full_access" for k in await self._keys_of(visit, text)):
            return visit.redirect(KEYS, done="demoted")
        return visit.redirect(SETTINGS, done="role")

    # Removing somebody. Their API keys go on working unless they are revoked, since programs may depend on them.

    @page(app, f"{SETTINGS}/members/<text>/remove", fresh=True)
    async def removal(self, visit: Visit, text: str) -> bytes:
        self._may_remove(visit, text)
        email, keys = await self._member(visit, text), await self._keys_of(visit, text)
        return visit.render("settings/remove.html", email=email, keys=keys, leaves=visit.uuid(text) == visit.who.user_id, path=visit.path)

    @page(app, f"{SETTINGS}/members/<text>/remove", "POST", fresh=True)
    async def remove(self, visit: Visit, text: str) -> bytes:
        """By an admin, or by themselves. The API keys that were chosen are revoked with it."""
        self._may_remove(visit, text)
        email, created = await self._member(visit, text), {str(key.id): key for key in await self._keys_of(visit, text)}
        chosen = [name.removeprefix("revoke:") for name in visit.form if name.startswith("revoke:")]
        if not set(chosen) <= set(created):
            raise Stop(422, "Unknown API key", "One of the selected API keys no longer exists, so nothing was changed.")
        revoked = [created[text] for text in chosen]
        lines = [visit.line("member removed", email), *(visit.line("key revoked", f"{key.name} ({key.hint}…)") for key in revoked)]
        if not await self.desk.users.remove(visit.account_id, visit.uuid(text), lines, [key.id for key in revoked]):
            return visit.redirect(SETTINGS, done="last")
        if revoked:
            self.keys.changed()
        return visit.redirect(SETTINGS, done="removed-keys" if revoked else "removed")

    def _may_remove(self, visit: Visit, text: str) -> None:
        if not visit.admin and visit.uuid(text, "member") != visit.who.user_id:
            raise forbidden("Only account admins can do this.")

    async def _keys_of(self, visit: Visit, text: str) -> Sequence[KeyView]:
        """The keys in force that a member created."""
        user_id = visit.uuid(text, "member")
        return [key for key in (await self.keys.list(visit.account_id))[0] if key.created_by == user_id]

    async def _member(self, visit: Visit, text: str) -> str:
        user_id = visit.uuid(text, "member")
        email = next((m.email for m in await self.desk.users.members(visit.account_id) if m.user_id == user_id), None)
        if email is None:
            raise not_found("member")
        return email

    # The audit log

    @page(app, f"{SETTINGS}/audit", who="admin")
    async def audit(self, visit: Visit) -> bytes:
        after = visit.uuid(visit.query("after")) if visit.query("after") else None
        entries, more = await self.desk.audit.list(visit.account_id, PAGE, after)
        older = f"{SETTINGS}/audit?after={entries[-1].id}" if more else None
        return visit.render("settings/audit.html", entries=entries, older=older, first=after is None)

    @page(app, f"{SETTINGS}/audit.csv", who="admin")
    async def export(self, visit: Visit) -> bytes:
        out = io.StringIO()
        writer = csv.writer(out)
        writer.writerow(["time", "who", "address", "action", "subject"])
        async for entries in self.desk.audit.all(visit.account_id):
            for entry in entries:
                row = [entry.at.isoformat(), entry.actor, entry.address, entry.action, entry.subject]
                writer.writerow([plain(value) for value in row])
        await visit.note("audit log exported")
        visit.set_header("Content-Disposition", 'attachment; filename="audit.csv"')
        return visit.send(out.getvalue().encode(), "text/csv; charset=utf-8")


def _role(visit: Visit) -> Role:
    role = visit.field("role")
    if role not in ("admin", "member"):
        raise Stop(422, "Unknown role", "The role must be Admin or Member.")
    return "admin" if role == "admin" else "member"
