"""Builds every section with what it needs, and the context that all sections share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import attrs
from klein.resource import KleinResource

from mailsvc.accounts.quota import Quotas
from mailsvc.broadcasts.images import ImageReader
from mailsvc.clock import unix
from mailsvc.dashboard import docs, formatting
from mailsvc.dashboard.account.access_review import AccessReviewPages
from mailsvc.dashboard.account.data import DataPages
from mailsvc.dashboard.account.members import MemberPages
from mailsvc.dashboard.account.passkeys import IdentityPages, PasskeyPages
from mailsvc.dashboard.account.plan import PlanPage
from mailsvc.dashboard.account.privacy import PrivacyPages
from mailsvc.dashboard.account.profile import Profile
from mailsvc.dashboard.account.security import Security
from mailsvc.dashboard.account.single_sign_on import SingleSignOnSettings
from mailsvc.dashboard.account.smtp import SmtpPages
from mailsvc.dashboard.account.usage import Usage
from mailsvc.dashboard.audience.assembly import sections as audience_sections
from mailsvc.dashboard.broadcasts.assembly import sections as broadcast_sections
from mailsvc.dashboard.context import PageContext
from mailsvc.dashboard.domains import DomainPages
from mailsvc.dashboard.editor.images import ImagePages
from mailsvc.dashboard.editor.pages import EditorPages
from mailsvc.dashboard.editor.preview import Previews
from mailsvc.dashboard.emails.detail import EmailPages
from mailsvc.dashboard.emails.export import ExportPages
from mailsvc.dashboard.emails.listing import EmailList
from mailsvc.dashboard.emails.resend import Resend
from mailsvc.dashboard.emails.shared_trial import SharedTrials
from mailsvc.dashboard.emails.trial import TrialPages
from mailsvc.dashboard.files import address
from mailsvc.dashboard.home.page import Home
from mailsvc.dashboard.keys import KeyPages
from mailsvc.dashboard.logs import LogList
from mailsvc.dashboard.metrics import Metrics
from mailsvc.dashboard.pages import CommonPages, Dashboard
from mailsvc.dashboard.places import PLACES
from mailsvc.dashboard.providers import ProviderPages
from mailsvc.dashboard.relay_access import RelayAccess
from mailsvc.dashboard.samples import Samples
from mailsvc.dashboard.sandbox import Inbox
from mailsvc.dashboard.signin.account_providers import AccountProviders
from mailsvc.dashboard.signin.authenticators import RelyingParty
from mailsvc.dashboard.signin.completion import Authentication
from mailsvc.dashboard.signin.federation import Federation
from mailsvc.dashboard.signin.mails import Mailer
from mailsvc.dashboard.signin.pages import SignIn
from mailsvc.dashboard.signin.passkeys import PasskeySignIn
from mailsvc.dashboard.signin.password import Passwords
from mailsvc.dashboard.signin.providers import Provider
from mailsvc.dashboard.signin.second_factor import SecondFactor
from mailsvc.dashboard.signin.sign_up import EmailLinkPages
from mailsvc.dashboard.signin.single_sign_on import SingleSignOnPages
from mailsvc.dashboard.signin.throttle import Throttle
from mailsvc.dashboard.suppressions import SuppressionPages
from mailsvc.dashboard.uploads import Uploader
from mailsvc.dashboard.webhooks import WebhookPages
from mailsvc.domains.maintenance import DomainMaintenance
from mailsvc.domains.names import suffixes
from mailsvc.http.resources.audience.context import AudienceContext
from mailsvc.insights.reputation import Reputation
from mailsvc.intake import Intake
from mailsvc.mail.address import parse_mailbox
from mailsvc.net import urls
from mailsvc.net.fetch import Fetcher
from mailsvc.net.signed_links import SignedLinks
from mailsvc.runtime.offload import InThread
from mailsvc.settings import retention
from mailsvc.settings.schema import Settings
from mailsvc.store.account_data.closing import Closing
from mailsvc.store.audience.contacts import Contacts
from mailsvc.store.audience.figures import AudienceFigures
from mailsvc.store.audience.keys import AudienceKeys
from mailsvc.store.audience.properties import Properties
from mailsvc.store.audience.segments import Segments
from mailsvc.store.audience.topics import Topics
from mailsvc.store.broadcasts.images import Images
from mailsvc.store.broadcasts.sending import Sending
from mailsvc.store.broadcasts.versions import Versions
from mailsvc.store.domains.domains import Domains
from mailsvc.store.domains.reports import Reports
from mailsvc.store.encryption.secrets import Encryption
from mailsvc.store.events.rollups import Rollups
from mailsvc.store.events.suppressions import Suppressions
from mailsvc.store.events.webhook_log import WebhookLog
from mailsvc.store.events.webhooks import Webhooks
from mailsvc.store.logs.requests import RequestLog
from mailsvc.store.logs.retention import Retention
from mailsvc.store.logs.search import LogSearch
from mailsvc.store.logs.smtp_sessions import SmtpSessions
from mailsvc.store.mail.emails import Emails as StoredEmails
from mailsvc.store.mail.exports import Exports
from mailsvc.store.mail.history import History
from mailsvc.store.mail.messages import Messages
from mailsvc.store.mail.recipient_domains import RecipientDomains
from mailsvc.store.mail.search import Search
from mailsvc.store.people.accounts import Accounts
from mailsvc.store.people.addresses import Addresses
from mailsvc.store.people.api_keys import Keys
from mailsvc.store.people.audit import Audit
from mailsvc.store.people.identities import Identities
from mailsvc.store.people.minimization import Minimization
from mailsvc.store.people.operator_access import OperatorAccesses
from mailsvc.store.people.passkeys import Passkeys
from mailsvc.store.people.sessions import Sessions
from mailsvc.store.people.shared_tests import SharedTests
from mailsvc.store.people.sign_in_attempts import SignInAttempts
from mailsvc.store.people.single_sign_on import SingleSignOns
from mailsvc.store.people.users import Users
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.privacy.journal import Recorded
from mailsvc.store.privacy.keyed_hash import keyed_hashes
from mailsvc.store.queue.operator import Operating

# path below /dashboard, name, icon
NAVIGATION = (
    ("", "Home", "home"),
    ("emails", "Emails", "mail"),
    ("broadcasts", "Broadcasts", "send"),
    ("audience", "Audience", "people"),
    ("domains", "Domains", "globe"),
    ("keys", "API keys", "key"),
    ("metrics", "Metrics", "chart"),
    ("logs", "Logs", "list"),
    ("webhooks", "Webhooks", "hook"),
    ("suppressions", "Suppressions", "stop"),
    ("sandbox", "Sandbox inbox", "inbox"),
    ("settings", "Settings", "gear"),
)


@attrs.define(eq=False, kw_only=True)
class Assembly:
    """What the dashboard needs. `mailer`: None if the service sends no emails itself. `inbox`: the sandbox, in development only."""

    pool: Pool
    clock: Any
    encryption: Encryption
    in_thread: InThread
    base_url: str
    accounts: Accounts
    domains: Domains
    maintenance: DomainMaintenance
    keys: Keys
    messages: Messages
    mailer: Mailer | None
    sign_up: bool
    webhooks: Webhooks
    fetcher: Fetcher  # for URLs that customers give
    most_webhooks: int
    quotas: Quotas
    notify: Callable[[str], None]
    intake: Intake
    settings: Settings
    relay_ports: Mapping[str, int]
    reputation: Reputation
    erasing: Recorded
    audience: AudienceContext
    providers: Mapping[str, Provider] = attrs.field(factory=dict)
    inbox: Any = None
    password_thread: InThread | None = None

    def __attrs_post_init__(self) -> None:
        given = self.settings.dashboard
        idle, longest = timedelta(hours=given.session_idle_hours), timedelta(days=given.session_days)
        self.users, self.sessions = Users(self.pool, self.clock, self.encryption), Sessions(self.pool, self.clock, idle, longest)
        self.attempts = SignInAttempts(self.pool, self.clock)

    users: Users = attrs.field(init=False)
    sessions: Sessions = attrs.field(init=False)
    attempts: SignInAttempts = attrs.field(init=False)

    def resource(self) -> Dashboard:
        suffixes()  # loaded now, so that the first email page does not wait 50 ms for them
        context, pool = self._context(), self.pool
        throttle = Throttle(self.attempts, partial(unix, self.clock), lambda: self.encryption.secrets_for("attempts")[0])
        passwords = Passwords(self.password_thread or self.in_thread, ("mailsvc", urlsplit(self.base_url).hostname or ""))
        authentication = Authentication(context, passwords, throttle, self.attempts, self.mailer)
        passkeys = PasskeySignIn(context, authentication)
        second = SecondFactor(context, authentication, passkeys)
        search, rollups, stored = Search(pool), Rollups(pool), StoredEmails(pool, self.clock)
        closing = Closing(pool, self.clock, self.notify)
        shared = self._shared_trials(context, stored)
        trials = TrialPages(context, stored, self.domains, self.accounts, self.intake, shared)
        home = Home(
            context, self.domains, self.keys, search, rollups, Operating(pool), self.accounts, closing, trials, self.webhooks, self.quotas,
        )  # fmt: skip
        metrics = Metrics(context, rollups, self.domains)
        sections: dict[str, Any] = {
            "": home, "start": home, "steps": home, "test": trials, "shared-test": shared,
            **self._emails(context, stored, search),
            "domains": DomainPages(
                context, self.domains, self.maintenance, self.reputation, Reports(pool), authentication, trials,
            ),
            "keys": KeyPages(context, self.keys, self.domains),
            "metrics": metrics, "metrics/providers": ProviderPages(metrics, RecipientDomains(pool)),
            "webhooks": WebhookPages(
                context, self.webhooks, WebhookLog(pool), partial(urls.read, rules=self.fetcher.rules), self.most_webhooks,
                partial(self.notify, "webhooks"), self._webhook_days,
            ),
            "broadcasts/*/edit": self._editor(context, trials),
            "images": ImagePages(
                context, Images(pool, self.clock), ImageReader(self.in_thread), self._images, self.settings.broadcasts.images_size,
            ),
            "suppressions": SuppressionPages(
                context, Suppressions(pool, self.clock, partial(keyed_hashes, self.encryption)), lambda: self.notify("events"),
            ),
            **self._preferences(context, rollups, closing),
            **audience_sections(context, self.audience, pool, self.settings),
            **broadcast_sections(context, pool, self.settings, self.domains, self.accounts, self.quotas, self.notify),
            **self._people(context, authentication, passkeys, second),
        }  # fmt: skip
        if self.inbox is not None:
            sections["sandbox"] = Inbox(context, self.inbox)
        return Dashboard({name: _resource(section) for name, section in sections.items()}, _resource(CommonPages(context)))

    def _emails(self, context: PageContext, stored: StoredEmails, search: Search) -> dict[str, Any]:
        """Emails, logs, and their exports."""
        pool = self.pool
        resend = Resend(self.intake, self.accounts, self.in_thread, self.clock)
        links = SignedLinks(partial(self.encryption.secrets_for, "links"))
        ahead = timedelta(days=self.settings.limits.schedule_ahead)
        emails = EmailPages(context, stored, History(pool), self.messages, self.domains, self.keys, resend, links, self.reputation, ahead)
        email_list = EmailList(context, stored, search, self.domains, self.keys)
        logs = LogList(context, LogSearch(pool), RequestLog(pool), SmtpSessions(pool, self.clock), self.keys)
        exports = ExportPages(context, Exports(pool, self.clock), email_list, logs)
        return {"emails": emails, "emails/": email_list, "emails/export": exports, "logs": logs, "logs/export": exports}

    def _preferences(self, context: PageContext, rollups: Rollups, closing: Closing) -> dict[str, Any]:
        """The pages below Settings that are about the account, not about who signs in."""
        pool, settings = self.pool, self.settings
        return {
            "settings/usage": Usage(
                context, rollups, self.accounts, self.domains, self.webhooks, settings.http.rate_limit, self.most_webhooks, self.quotas,
            ),
            "settings/plan": PlanPage(context, self.accounts, self.quotas, AudienceFigures(pool, self.clock)),
            "settings/smtp": SmtpPages(context, context.samples.relay, self.keys, self.domains),
            "settings/data": DataPages(
                context, Retention(pool), settings.retention, closing, settings.privacy.grace_days,
                Minimization(pool, self.clock, self.notify),
            ),
            "settings/privacy": PrivacyPages(context, self.erasing),
        }  # fmt: skip

    def _people(
        self, context: PageContext, authentication: Authentication, passkeys: PasskeySignIn, second: SecondFactor
    ) -> dict[str, Any]:
        """Who can sign in, and signing in."""
        pool = self.pool
        ramp = next(iter(self.settings.abuse.ramp), None)
        signin, email_links = SignIn(context, authentication, passkeys, second), EmailLinkPages(context, authentication, ramp)
        account_providers = AccountProviders(self.fetcher, partial(unix, self.clock))
        return {
            "settings": MemberPages(context, authentication, self.keys, OperatorAccesses(pool, self.clock)),
            "settings/access": AccessReviewPages(context, pool),
            "settings/sso": SingleSignOnSettings(context, account_providers),
            "settings/security": Security(context, authentication, second),
            "settings/profile": Profile(context, authentication, Addresses(pool, self.clock)),
            "settings/passkeys": PasskeyPages(context, authentication, passkeys, second),
            "settings/identities": IdentityPages(context, authentication),
            "sign-in": signin, "sign-in/code": second, "sign-in/passkey": passkeys,
            "sign-in/with": Federation(context, authentication, email_links),
            "sign-in/sso": SingleSignOnPages(context, authentication, account_providers, signin),
            "sign-up": email_links, "reset": email_links, "invitation": email_links,
        }  # fmt: skip

    def _shared_trials(self, context: PageContext, stored: StoredEmails) -> SharedTrials:
        address = self.settings.dashboard.test_sender
        sender = None if address is None else attrs.evolve(parse_mailbox(address), name="mailsvc test")
        return SharedTrials(context, SharedTests(self.pool, self.clock), self.domains, self.accounts, self.intake, stored, sender)

    def _editor(self, context: PageContext, trials: TrialPages) -> EditorPages:
        pool, clock = self.pool, self.clock
        contacts = Contacts(pool, clock, AudienceKeys(pool, self.encryption))
        previews = Previews(contacts, Sending(pool), self.accounts, self.intake, self.in_thread, self.base_url)
        return EditorPages(
            context, Versions(pool, clock), previews, self.domains, Segments(pool, clock), Topics(pool, clock), Properties(pool, clock),
            self.settings.broadcasts, self._images, trials,
        )  # fmt: skip

    async def _webhook_days(self, account_id: UUID) -> int:
        return retention.days(self.settings.retention, await Retention(self.pool).wanted(account_id))["webhooks"]

    @property
    def _images(self) -> str:
        """The origin of uploaded images."""
        host = self.settings.broadcasts.images_host or self.settings.tracking.host
        return f"https://{host}" if host else self.base_url.rstrip("/")

    def _context(self) -> PageContext:
        templates = formatting.environment(navigation=NAVIGATION, palette=PLACES, docs=docs, static=address)
        return PageContext(
            users=self.users, sessions=self.sessions, audit=Audit(self.pool, self.clock), templates=templates,
            secrets=partial(self.encryption.secrets_for, "dashboard"), base_url=self.base_url, clock=self.clock, in_thread=self.in_thread,
            has_sandbox=self.inbox is not None, sign_up=self.sign_up, sends_email=self.mailer is not None,
            identities=Identities(self.pool, self.clock), passkeys=Passkeys(self.pool, self.clock), providers=self.providers,
            relying_party=RelyingParty.of(self.base_url),
            samples=Samples(self.base_url, RelayAccess.of(self.settings, self.relay_ports)),
            single_sign_ons=SingleSignOns(self.pool, self.clock, self.encryption),
        )  # fmt: skip

    @property
    def uploader(self) -> Uploader:
        """Who may upload a file on a page."""
        return Uploader(self.sessions, self.base_url.startswith("https:"))


def _resource(section: Any) -> KleinResource:
    resource: KleinResource = section.app.resource()
    return resource
