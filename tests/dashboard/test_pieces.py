"""The pure parts of the dashboard: throttling, tickets, safety, passwords, codes, formatting, timelines."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime, timedelta
from html import unescape
from types import SimpleNamespace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, succeed
from twisted.web.http_headers import Headers

from mailsvc.dashboard import files, formatting, safety
from mailsvc.dashboard.emails import timeline
from mailsvc.dashboard.emails.detail import EmailPages
from mailsvc.dashboard.emails.preview import embedded
from mailsvc.dashboard.signin import password, second_factor, tickets
from mailsvc.dashboard.signin.authenticators import RelyingParty
from mailsvc.dashboard.signin.password import Passwords
from mailsvc.dashboard.signin.providers import ProviderClient, ProviderError
from mailsvc.dashboard.signin.throttle import FREE, FREE_OF, LONGEST, wait
from mailsvc.mail import csv_file, mime
from mailsvc.mail.csv_file import plain
from mailsvc.net.fetch import Reply
from mailsvc.store.events.event_data import Bounce, Click, Delay, Delivery, Empty, Open
from mailsvc.store.mail.emails import AttemptView
from mailsvc.store.mail.history import EventView
from mailsvc.store.people.sign_in_attempts import Tries

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def result_of(coroutine):
    found: list[object] = []
    Deferred.fromCoroutine(coroutine).addBoth(found.append)
    return found[0]


# Throttling


def test_the_delay_doubles_with_each_failure_up_to_fifteen_minutes():
    waits = [wait("email", Tries(count, 1000.0), 1000.0) for count in range(1, 41)]
    assert waits[: FREE - 1] == [0] * (FREE - 1)
    assert waits[FREE - 1 : FREE + 3] == [1, 2, 4, 8]
    assert waits == sorted(waits) and waits[-1] == LONGEST
    assert wait("email", Tries(40, 1000.0), 1000.0 + LONGEST) == 0 and wait("email", None, 0.0) == 0
    assert wait("email", Tries(40, 1000.0), 999.0) == LONGEST + 1, "another process's clock is a little behind"
    assert wait("email", Tries(40, 90_000.0), 1000.0) == 0, "nobody has to wait for a time that a wrong clock set"


def test_an_ip_address_has_more_free_failures():
    for kind, free in FREE_OF.items():
        assert wait(kind, Tries(free - 1, 0.0), 0.0) == 0 and wait(kind, Tries(free, 0.0), 0.0) == 1


# Tickets


def test_a_ticket_is_valid_for_one_browser_one_purpose_and_ten_minutes():
    text = tickets.issue(b"s", "browser", "state", 1000.0, next="/dashboard", why="é")
    assert tickets.read([b"old", b"s"], "browser", "state", text, 1599.0) == {"next": "/dashboard", "why": "é"}
    assert text != tickets.issue(b"s", "browser", "state", 1000.0, next="/dashboard", why="é")
    for secret, anchor, purpose, now in (
        (b"t", "browser", "state", 1000.0), (b"s", "other", "state", 1000.0), (b"s", "", "state", 1000.0),
        (b"s", "browser", "passkey", 1000.0), (b"s", "browser", "state", 1600.0),
    ):  # fmt: skip
        assert tickets.read([secret], anchor, purpose, text, now) is None
    assert len(tickets.derived(b"s", text, "verifier")) == 43
    assert tickets.derived(b"s", text, "verifier") != tickets.derived(b"s", text, "nonce")


@given(st.text(max_size=40))
def test_arbitrary_text_is_not_a_ticket(text):
    assert tickets.read([b"old", b"s"], "browser", "state", text, 0.0) is None
    tickets.in_challenge(text)


def test_nested_client_data_has_no_ticket() -> None:
    assert tickets.in_challenge(b64encode(b"[" * 20_000).decode()) == ""


def test_nested_response_of_a_provider_is_refused() -> None:
    class Fetcher:
        async def fetch(self, *_: object, **__: object) -> Reply:
            return Reply(200, Headers(), b"[" * 20_000, True)

    with pytest.raises(ProviderError):
        result_of(ProviderClient(Fetcher(), "X").get("https://x.example/")).raiseException()


@pytest.mark.parametrize(
    ("base_url", "site"),
    [
        ("http://localhost:8025", ("localhost", "http://localhost:8025")),
        ("https://Mail.example.com", ("mail.example.com", "https://mail.example.com")),
        ("http://mail.example.com", None),
        ("https://192.0.2.1", None),
        ("https://[2001:db8::1]:8443", None),
        ("", None),
    ],
)
def test_passkeys_require_a_host_name_with_tls(base_url, site):
    found = RelyingParty.of(base_url)
    assert (found and (found.id, found.origin)) == site


# Safety


@pytest.mark.parametrize(
    "path", ["/dashboard", "/dashboard/emails", "/dashboard/emails?q=a%40b&status=sent", "/dashboard/invitation?link=a_b-c"]
)
def test_redirects_to_dashboard_pages_are_kept(path):
    assert safety.inside(path) == path


@given(st.text(max_size=30))
def test_a_redirect_never_leaves_the_dashboard(text):
    for path in (text, f"/{text}", f"/dashboard{text}", f"/dashboard/{text}"):
        found = safety.inside(path)
        assert found.startswith("/dashboard") and "//" not in found and "\\" not in found and "\n" not in found and "\r" not in found


def test_a_form_token_belongs_to_one_browser():
    assert safety.same_token((b"r", b"s"), "one", safety.token(b"s", "one"))
    assert not safety.same_token((b"r", b"s"), "two", safety.token(b"s", "one"))
    assert not safety.same_token((b"t",), "one", safety.token(b"s", "one"))
    assert not safety.same_token((b"r", b"s"), "", safety.token(b"s", ""))


def test_with_tls_cookies_are_bound_to_the_host():
    assert safety.cookie("mailsvc", "x", secure=True, seconds=60) == "__Host-mailsvc=x; Path=/; HttpOnly; SameSite=Lax; Max-Age=60; Secure"
    assert "max-age=31536000" in safety.headers(secure=True)["Strict-Transport-Security"]
    assert "Strict-Transport-Security" not in safety.headers(secure=False)


@given(st.text(max_size=20))
def test_no_cell_of_an_export_is_a_formula(text):
    assert not any(cell.startswith(("=", "+", "-", "@")) for cell in plain(text).split(";"))


@pytest.mark.parametrize("cell", ["=1", "+1", "-1", "@a", "\t=1", "\r=1", "\n=1", " =1", "\u00a0=1", "\uff1d1", "\ufeff=1"])
def test_formulas_are_escaped_as_text(cell):
    assert plain(cell) == f"'{cell}" and plain(f"a{cell}") == f"a{cell}"
    assert plain(f"a; b;{cell};") == f"a; b;'{cell};"  # a cell of its own where decimals have a comma


def test_csv_cells_are_quoted_when_needed():
    assert csv_file.lines([("a", None, 1), ('q"c', "x,y", "l\r\nm")]) == b'a,,1\r\n"q""c","x,y","l\r\nm"\r\n'


# Passwords and codes


def test_verifying_without_a_stored_password_takes_as_long(monkeypatch):
    verified = []
    monkeypatch.setattr(password, "_verified", lambda given, stored: verified.append(stored) or True)
    passwords = Passwords(lambda work: succeed(work()))
    assert result_of(passwords.verify("x", None)) is False
    assert result_of(passwords.verify("x", "$argon2id$real")) is True
    assert len(verified) == 2 and verified[0].startswith("$argon2id$v=19$m=19456,t=2,p=1$")


def test_only_the_right_password_verifies():
    passwords = Passwords(lambda work: succeed(work()))
    stored = result_of(passwords.hash("long enough to be good"))
    assert "long enough" not in stored and not password.outdated(stored)
    assert result_of(passwords.verify("long enough to be good", stored))
    assert not result_of(passwords.verify("long enough to be bad", stored))
    assert not result_of(passwords.verify("anything", "no hash at all"))


@pytest.mark.parametrize("bad", ["short", "aaaaaaaaaaaa", "password123", "ann@example.com", "x" * 1001])
def test_easy_passwords_are_refused(bad):
    assert result_of(Passwords(lambda work: succeed(work())).problem(bad, "ann@example.com"))


CONTEXT = ("ann.smith@acme-example.com", "Ann Smith", "Acme Robotics")


@pytest.mark.parametrize(
    "bad",
    [
        "annsmith2024", "AnnSmith!2024", "acmerobotics1", "Acme Robotics", "mail.example.net", "ann.smith@acme", "smithann1999",
        "acme-example.com1", "mailsvc-mailsvc", "abcdefghijkl", "qwertyuiop12", "P@ssw0rd2024", "1234567890", "iloveyou123",
    ],
)  # fmt: skip
def test_passwords_built_from_known_names_are_refused(bad):
    passwords = Passwords(lambda work: succeed(work()), ("mailsvc", "mail.example.net"))
    assert result_of(passwords.problem(bad, *CONTEXT)) == password.EASY


@pytest.mark.parametrize("good", ["acme robotics on the moon", "smith owns quiet lamps", "exemplary-mails-4-nobody"])
def test_a_known_word_among_others_is_accepted(good):
    passwords = Passwords(lambda work: succeed(work()), ("mailsvc", "mail.example.net"))
    assert result_of(passwords.problem(good, *CONTEXT)) is None


@given(st.text(min_size=1, max_size=40), st.integers(0, password.BESIDES - 1))
def test_any_name_with_few_other_characters_is_refused(name, more):
    passwords = Passwords(lambda work: succeed(work()))
    word = "".join(password._PART.findall(name.lower()))
    if len(word) >= 10 and word == word.lower():
        assert result_of(passwords.problem(word + "~" * more, name)) == password.EASY


@pytest.mark.parametrize("good", ["seven quiet green lamps", "Tr0ub4dor&3xyzzy", "пароль из четырёх слов"])
def test_no_kind_of_character_is_required(good):
    assert result_of(Passwords(lambda work: succeed(work())).problem(good, "ann@example.com")) is None


def test_totp_codes_match_the_rfc_examples():
    """6238 appendix B: the last six digits of the SHA-1 examples."""
    secret = b"12345678901234567890"
    for at, code in ((59, "287082"), (1111111109, "081804"), (1234567890, "005924"), (20000000000, "353130")):
        assert second_factor.step_of(secret, code, at) == at // 30
        assert second_factor.step_of(secret, code, at + 30) == at // 30
        assert second_factor.step_of(secret, code, at + 61) is None


def test_there_are_ten_long_recovery_codes():
    codes = second_factor.new_codes()
    assert len(set(codes)) == 10 and all(len(code.replace("-", "")) >= 11 for code in codes)


# Files


@pytest.mark.parametrize(
    ("accepted", "taken"),
    [
        ("gzip, deflate, br", True),
        ("br;q=1, GZIP;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000, br", False),
        ("br", False),
        ("", False),
    ],
)
def test_accept_encoding_is_read(accepted, taken):
    assert files.takes_packed(accepted) is taken


def test_the_npm_packages_are_installed():
    """If not, run `make test` or etc/packages with the folder of a virtual environment."""
    assert files.missing() == []


def test_a_page_renders_without_the_npm_packages(monkeypatch):
    monkeypatch.setattr(files, "FILES", {"dashboard.js": files.FILES["dashboard.js"]})
    assert files.missing() == list(files.FOREIGN)
    templates = formatting.environment(static=files.address)
    page = templates.get_template("document.html").render(request=SimpleNamespace(theme="auto", session=None))
    assert page.count("<script") == 1 and "/dashboard.js" in page and 'src=""' not in page
    charts = templates.get_template("charts.html").module
    assert charts.files() == charts.chart("bars", "0", "good", "Volume") == ""


# Formatting, timelines


@pytest.mark.parametrize(
    ("seconds", "sentence"),
    [(0, "just now"), (5, "5 seconds ago"), (60, "1 minute ago"), (7200, "2 hours ago"), (-86400, "in 1 day"), (-604790, "in 7 days")],
)
def test_relative_times(seconds, sentence):
    assert formatting.ago(NOW - timedelta(seconds=seconds), NOW) == sentence


@given(st.text(max_size=20))
def test_an_address_may_wrap_after_its_at_sign_and_is_escaped(text):
    assert unescape(str(formatting.address(text)).replace("<wbr>", "", 1)) == text
    assert formatting.address("<b>@x.example") == "&lt;b&gt;@<wbr>x.example"


def test_a_message_is_read_when_there_is_room_for_it():
    """Without memory for it, a large message is not loaded."""
    sizes: list[int] = []

    class Full:
        async def turn(self, size: int) -> bool:
            sizes.append(size)
            return False

    request, email = SimpleNamespace(http=Full()), SimpleNamespace(size=100_000)
    errors: list[object] = []
    Deferred.fromCoroutine(EmailPages._load(SimpleNamespace(), request, email)).addErrback(lambda failure: errors.append(failure.value))
    assert [stop.status for stop in errors] == [503] and sizes == [300_000]


def test_a_recipients_timeline_has_its_own_events_and_attempts_in_order():
    ids = UUID(int=1)
    events = [
        EventView(ids, None, "email.sent", NOW, Empty()),
        EventView(ids, 0, "email.delivered", NOW + timedelta(seconds=3), Delivery("250 ok")),
        EventView(ids, 1, "email.bounced", NOW + timedelta(seconds=2), Bounce("Permanent", "General", "550 no")),
    ]
    attempt = AttemptView(
        attempt_id=ids, recipients=(0, 1), outcomes=("delivered", "bounced"), replies=("250 ok", "550 no"), host="mx", address="1.2.3.4:25",
        tls=None, started_at=NOW + timedelta(seconds=1), seconds=0.2, transcript="C: QUIT",
        classes=(None, "user_unknown"), rules=(None, None),
    )  # fmt: skip
    attempts = [attempt]
    entries = timeline.of_recipient(1, events, attempts, NOW)
    assert [(m.title, m.text) for m in entries] == [("Accepted", "Queued for delivery."), ("Attempt 1", "550 no"), ("Bounced", "")]
    assert entries[1].meaning == "user unknown"
    at_once = [EventView(ids, 0, "email.suppressed", NOW, Empty()), events[0]]
    assert [m.title for m in timeline.of_recipient(0, at_once, [], NOW)] == ["Accepted", "Suppressed"]
    assert [m.title for m in timeline.of_recipient(0, events, attempts, NOW)] == ["Accepted", "Attempt 1", "Delivered"]


def test_deferred_attempts_that_end_alike_are_one_entry():
    def attempt(number: int, outcome: str, reply: str) -> AttemptView:
        return AttemptView(
            attempt_id=UUID(int=number), recipients=(0,), outcomes=(outcome,), replies=(reply,), host="mx", address="1.2.3.4:25", tls=None,
            started_at=NOW + timedelta(minutes=number), seconds=0.2, transcript=f"C: QUIT {number}", classes=(None,), rules=(None,),
        )  # fmt: skip

    later = "451 try again later"
    attempts = [attempt(n, "deferred", later) for n in (1, 2, 3)] + [attempt(4, "deferred", "452 full"), attempt(5, "delivered", "250 ok")]
    events = [
        EventView(UUID(int=9), None, "email.sent", NOW, Empty()),
        EventView(UUID(int=9), 0, "email.delivery_delayed", NOW + timedelta(seconds=61), Delay(later, None)),
        EventView(UUID(int=9), 0, "email.delivered", NOW + timedelta(minutes=6), Delivery("250 ok")),
    ]
    entries = timeline.of_recipient(0, events, attempts, NOW)
    assert [entry.title for entry in entries] == ["Accepted", "Attempts 1 to 3", "Attempt 4", "Attempt 5", "Delivered"]
    group = entries[1]
    assert (group.text, group.at, group.transcript) == (later, NOW + timedelta(minutes=1), None)
    assert [(each.title, each.transcript) for each in group.attempts] == [(f"Attempt {n}", f"C: QUIT {n}") for n in (1, 2, 3)]


def test_a_timeline_shows_opens_and_clicks_and_who_it_may_have_been():
    ids, firefox = UUID(int=1), "Mozilla/5.0 (X11) Firefox/140.0"
    events = [
        EventView(ids, None, "email.opened", NOW, Open("192.0.2.0", firefox)),
        EventView(ids, None, "email.clicked", NOW + timedelta(seconds=1), Click("https://example.com/", "192.0.2.0", "", "HEAD", "method")),
        EventView(ids, None, "email.opened", NOW + timedelta(seconds=2), Open("", "", machine="a later code")),
    ]
    opened, clicked, later = timeline.of_recipient(0, events, [], NOW)
    assert (opened.title, opened.tone, opened.text, opened.facts) == ("Opened", "good", "", f"192.0.2.0 · {firefox}")
    assert (clicked.title, clicked.tone, clicked.facts) == ("Link clicked", "quiet", "192.0.2.0")
    assert clicked.text == "https://example.com/ Likely by a program that asked for the header only."
    assert later.text == "Likely by a program."


def test_a_preview_embeds_its_images_and_opens_links_in_a_new_tab():
    image = mime.File("a.png", "image/png", "logo@x", "inline", b"png")
    page = mime.File("b.html", "text/html", "evil", "inline", b"<script>")
    parsed = mime.Parsed(
        (), '<html><head><title>x</title></head><img src="cid:logo@x"><img src=cid:evil><img src="cid:none">', None, (image, page)
    )
    html = embedded(parsed)
    assert 'src="data:image/png;base64,cG5n"' in html and "cid:evil" in html and "cid:none" in html
    assert html.index('<base target="_blank">') < html.index("<title>")
