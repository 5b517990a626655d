"""Settings: what a file and the environment make of them, and the sentence that a wrong one gets."""

from __future__ import annotations

import re
from pathlib import Path
from uuid import UUID

import attrs
import pytest

from mailsvc.delivery.limits import DeliveryLimits
from mailsvc.settings import example, reader, schema
from mailsvc.settings.reader import SettingsError
from mailsvc.wiring import neighbours_of

ROOT = Path(__file__).parents[2]
KEY = "01987654-3210-7abc-8def-0123456789ab"
GOOD = """
base_url = "https://api.example.com"
database = { url = "postgresql://localhost/mailsvc" }
delivery = { ehlo_name = "out.example.com" }
smtp = { self_signed = "tls" }
"""


def load(tmp_path, text=GOOD, **environ):
    file = tmp_path / "mailsvc.toml"
    file.write_text(text)
    return schema.load(file, environ)


def refusal(tmp_path, text, **environ):
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, text, **environ)
    return str(caught.value)


def test_the_production_file_says_every_setting_with_its_default():
    assert (ROOT / "etc/mailsvc.toml").read_text("utf-8") == example.render()


def test_the_production_file_is_the_defaults():
    read = reader.build(schema.Settings, reader.read(ROOT / "etc/mailsvc.toml"), {})
    assert read == schema.Settings()


def test_each_setting_explains_itself():
    for table, key, field in reader.keys(schema.Settings):
        assert field.metadata["help"].endswith("."), f"{table}.{key}"
        if field.default is None:
            assert field.metadata["example"] is not None, f"{table}.{key} shows no example"


def test_the_development_file_loads():
    development = schema.load(ROOT / "etc/development.toml", {})
    assert development.base_url == "http://localhost:8025"
    assert development.delivery.routes == {"*": "smtp://127.0.0.1:2526"}
    assert development.database.embedded == Path("var/postgres").absolute()
    assert development.domains.allow_trust


def test_development_listens_on_loopback_alone():
    development = schema.load(ROOT / "etc/development.toml", {})
    endpoints = (*development.http.listen, *development.sandbox.listen, *development.smtp.listen.values())
    assert endpoints and all("interface=127.0.0.1" in endpoint for endpoint in endpoints)


def test_settings_are_frozen(tmp_path):
    loaded = load(tmp_path)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        loaded.http.rate_limit = 7
    with pytest.raises(TypeError):
        loaded.delivery.routes["*"] = "smtp://127.0.0.1:1"


@pytest.mark.parametrize(
    ("name", "value", "read", "expected"),
    [
        ("MAILSVC_BASE_URL", "http://127.0.0.1:1", lambda s: s.base_url, "http://127.0.0.1:1"),
        ("MAILSVC_DATABASE__POOL", "7", lambda s: s.database.pool, 7),
        ("MAILSVC_DELIVERY__IDLE_SECONDS", "2", lambda s: s.delivery.idle_seconds, 2.0),
        ("MAILSVC_DOMAINS__ALLOW_TRUST", "true", lambda s: s.domains.allow_trust, True),
        ("MAILSVC_ROLES", '["http"]', lambda s: s.roles, ("http",)),
        ("MAILSVC_DELIVERY__ROUTES", '{"*" = "smtp://[::1]:2526"}', lambda s: dict(s.delivery.routes), {"*": "smtp://[::1]:2526"}),
        ("MAILSVC_SECRETS__KEY_FILE", "/k", lambda s: s.secrets.key_file, Path("/k")),
    ],
)
def test_the_environment_comes_last(tmp_path, name, value, read, expected):
    assert read(load(tmp_path, **{name: value})) == expected


def test_other_variables_are_left_alone(tmp_path):
    assert load(tmp_path, PATH="/bin", MAILSVC_CONFIG="x", MAILSVC_TEST_DATABASE="y") == load(tmp_path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[http]\nlissen = []", "The setting http.lissen does not exist. Known here: listen, trusted_proxies"),
        ("[htp]", "The setting htp does not exist."),
        ("http = 3", "The setting http is 3; expected a table of settings."),
        ("[http]\nrate_limit = '10'", "The setting http.rate_limit is '10'; expected a whole number."),
        ("[http]\nrate_limit = true", "The setting http.rate_limit is true; expected a whole number."),
        ("[http]\nrate_limit = 0", "The setting http.rate_limit is 0; expected at least 1."),
        ("[http]\nlisten = 8025", "The setting http.listen is 8025; expected a list, each item a text."),
        ("[http]\nlisten = [8025]", "The setting http.listen[0] is 8025; expected a text."),
        ("[http]\nlisten = ['8025']", "The setting http.listen is a list; expected endpoints such as"),
        ("[delivery]\nroutes = {'*' = 1}", 'The setting delivery.routes."*" is 1; expected a text.'),
        ("[delivery]\nroutes = {'*' = 'mx'}", "The setting delivery.routes is a table; expected targets such as"),
        ("[delivery]\nretry = []", "The setting delivery.retry is a list; expected one or more numbers of seconds"),
        ("[database]\npool = 10.5", "The setting database.pool is 10.5; expected a whole number."),
        ("roles = ['smpt']", "The setting roles is a list; expected one or more of: http, smtp, delivery, ledger, webhooks, domains."),
        ("base_url = 'localhost'", "The setting base_url is 'localhost'; expected a web address"),
        ("base_url = 'https://a/'", "The setting base_url is 'https://a/'; expected a web address"),
        ("[log]\nlevel = 'loud'", "The setting log.level is 'loud'; expected one of: debug, info, warn, error."),
        ("", "One of the settings database.url and database.embedded is needed; neither is set."),
        ("database = {url = 'x', embedded = 'y'}", "One of the settings database.url and database.embedded is needed; both are set."),
        ("database = {url = 'x'}", "The setting base_url is missing"),
        ("base_url = 'https://a'\ndatabase = {url = 'x'}", "The setting delivery.ehlo_name is missing"),
        (GOOD + "http = {listen = []}", "The setting http.listen is empty"),
        (GOOD + "development = {dev_file = 'x'}", "The setting development.dev_file needs domains.allow_trust = true."),
        ("[smtp]\nlisten = {26 = 'tcp:26'}", "The setting smtp.listen is a table; expected endpoints such as"),
        ("[smtp]\ntrusted_networks = {'10.1.2.3/8' = 'x'}", "expected networks such as 10.1.0.0/16: 10.1.2.3/8 has host bits set."),
        (f"[smtp]\ntrusted_networks = {{'0.0.0.0/0' = '{KEY}'}}", "expected networks of /8 or narrower, of IPv6 /32; 0.0.0.0/0 is wider."),
        (f"[smtp]\ntrusted_networks = {{'10.0.0.0/7' = '{KEY}'}}", "10.0.0.0/7 is wider."),
        (f"[smtp]\ntrusted_networks = {{'::/0' = '{KEY}'}}", "The setting smtp.trusted_networks is a table; expected networks of /8"),
        (f"[smtp]\ntrusted_networks = {{'2001:d00::/31' = '{KEY}'}}", "2001:d00::/31 is wider."),
        (f"[smtp]\ntrusted_networks = {{'::ffff:0:0/96' = '{KEY}'}}", "neither link-local nor of IPv4, not ::ffff:0:0/96."),
        (f"[smtp]\ntrusted_networks = {{'::fffe:0:0/95' = '{KEY}'}}", "neither link-local nor of IPv4, not ::fffe:0:0/95."),
        (f"[smtp]\ntrusted_networks = {{'64:ff9b::a00:0/104' = '{KEY}'}}", "neither link-local nor of IPv4, not 64:ff9b::a00:0/104."),
        (f"[smtp]\ntrusted_networks = {{'fe80::/64' = '{KEY}'}}", "neither link-local nor of IPv4, not fe80::/64."),
        ("[smtp]\ntrusted_networks = ['10.0.0.0/8']", "The setting smtp.trusted_networks is a list; expected a table, each value a text."),
        (GOOD.replace('self_signed = "tls"', ""), "The certificate of the SMTP ports is missing; expected one of smtp.certificate with"),
        (GOOD.replace('tls"', 'tls", certbot = "x"'), "The certificate of the SMTP ports is several: certbot, self_signed; expected"),
        (GOOD.replace("self_signed", "key"), "The settings smtp.certificate and smtp.key belong together"),
        ("base_url", "is not TOML"),
    ],
)
def test_a_wrong_setting_gets_a_sentence_that_names_its_key(tmp_path, text, sentence):
    assert sentence in refusal(tmp_path, text)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("MAILSVC_HTTP__LISSEN", "[]", "The environment variable MAILSVC_HTTP__LISSEN belongs to no setting."),
        ("MAILSVC_DATABASE__POOL", "ten", "The environment variable MAILSVC_DATABASE__POOL is 'ten'; expected a whole number"),
        (
            "MAILSVC_DATABASE__POOL",
            "10\n[http]",
            "The environment variable MAILSVC_DATABASE__POOL is '10\\n[http]'; expected a whole number",
        ),
        ("MAILSVC_DATABASE__POOL", "'10'", "The setting database.pool is '10'; expected a whole number."),
    ],
)
def test_a_wrong_variable_gets_a_sentence(tmp_path, name, value, sentence):
    assert sentence in refusal(tmp_path, GOOD, **{name: value})


def test_a_secret_is_never_shown(tmp_path):
    assert refusal(tmp_path, GOOD + "secrets = { key = 54321 }") == "The setting secrets.key is not a text."
    assert "54321" not in refusal(tmp_path, "database = { url = 54321 }")


@pytest.mark.parametrize("key", ["ms_" + "s3cret" * 6, "", KEY + "0", KEY.upper(), KEY.replace("-", "")])
def test_a_trusted_network_has_the_id_of_a_key_and_the_key_itself_is_never_shown(tmp_path, key):
    sentence = "The setting smtp.trusted_networks is a table; expected the id of an API key with ::1, as `mailsvc key list` has it."
    assert refusal(tmp_path, f"[smtp]\ntrusted_networks = {{'::1' = '{key}'}}") == sentence


def test_trusted_networks_are_none_of_the_load_balancers(tmp_path):
    networks = {"127.0.0.1": KEY, "10.0.0.0/8": KEY, "fd00:1::/32": KEY}
    found = neighbours_of(schema.Smtp(trusted_networks=networks, trusted_proxies=("10.1.0.0/16",)))
    assert [found.key_of(host) for host in ("127.0.0.1", "10.2.0.1", "10.1.0.1", "fd00:1::1")] == [UUID(KEY), UUID(KEY), None, UUID(KEY)]
    with pytest.raises(SettingsError, match=re.escape("smtp.trusted_networks has fd00:1::/32, where a load balancer is")):
        neighbours_of(schema.Smtp(trusted_networks=networks, trusted_proxies=("fd00::/8",)))
    assert neighbours_of(schema.Smtp()).key_of("127.0.0.1") is None


def test_a_missing_file_gets_a_sentence(tmp_path):
    with pytest.raises(SettingsError, match="cannot be read: No such file"):
        schema.load(tmp_path / "none.toml", {})


def test_every_setting_is_used():
    """Somebody reads it by its name, or delivery/limits has one of the same name."""
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "mailsvc").rglob("*.py") if path.name != "settings.py")
    terms = {field.name for field in attrs.fields(DeliveryLimits)}
    unused = [
        f"{table}.{key}"
        for table, key, _ in reader.keys(schema.Settings)
        if not re.search(rf"\.{key}\b", sources) and not (table == "delivery" and key in terms)
    ]
    assert not unused


def test_the_terms_of_delivery_have_the_same_defaults():
    ours = schema.Delivery()
    shared = [field for field in attrs.fields(DeliveryLimits) if hasattr(ours, field.name)]
    assert len(shared) >= 20
    assert {field.name: field.default for field in shared if not isinstance(field.default, attrs.Factory)} == {
        field.name: getattr(ours, field.name) for field in shared if not isinstance(field.default, attrs.Factory)
    }


@pytest.mark.parametrize(
    ("listen", "token", "wrong"),
    [
        ("unix:/run/mailsvc/metrics.sock", None, None),
        ("tcp:9125:interface=127.0.0.1", "t", None),
        (r"tcp6:9125:interface=\:\:1", "t", None),
        ("tcp:9125:interface=127.0.0.1", None, "metrics.token is missing"),
        ("tcp:9125", "t", "metrics.listen is"),
        ("tcp:9125:interface=192.0.2.1", "t", "metrics.listen is"),
        ("tcp:9125:interface=127.0.0.1.example.com", "t", "metrics.listen is"),
    ],
)
def test_figures_are_shown_on_loopback_with_a_token_or_on_a_unix_socket(tmp_path, listen, token, wrong):
    text = GOOD + f"metrics.listen = ['{listen}']\n" + (f'metrics.token = "{token}"\n' if token else "")
    if wrong is None:
        assert load(tmp_path, text).metrics.listen == (listen,)
    else:
        said = refusal(tmp_path, text)
        assert wrong in said


@pytest.mark.parametrize(
    ("old", "new"),
    [(("http", "log_days"), "retention.requests"), (("smtp", "receipts"), "retention.receipts")],
)
def test_a_setting_that_has_moved_says_where_to(tmp_path, old, new):
    table, key = old
    text = GOOD.replace('self_signed = "tls"', 'self_signed = "tls", receipts = 5') if table == "smtp" else GOOD + "[http]\nlog_days = 5\n"
    assert refusal(tmp_path, text) == f"The setting {table}.{key} is {new} now."
    name = f"MAILSVC_{table}__{key}".upper()
    assert refusal(tmp_path, GOOD, **{name: "5"}) == f"The environment variable {name} is MAILSVC_{new.replace('.', '__').upper()} now."


def test_every_key_that_has_moved_leads_to_one_that_exists():
    known = {f"{table}.{key}" for table, key, _ in reader.keys(schema.Settings)}
    assert set(schema.MOVED.values()) <= known and not set(schema.MOVED) & known
