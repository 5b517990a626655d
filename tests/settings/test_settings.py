"""Reading settings from a file and the environment, and the message for each wrong one."""

from __future__ import annotations

import re
from pathlib import Path
from uuid import UUID

import attrs
import pytest
from twisted.logger import globalLogPublisher

from mailsvc.delivery.limits import DeliveryLimits
from mailsvc.settings import example, loading, reader, schema
from mailsvc.settings.reader import SettingsError
from mailsvc.store.encryption.secrets import ENVIRONMENT, OLD_ENVIRONMENT
from mailsvc.wiring import sources_of_regions, trusted_networks

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
    return loading.load(file, environ)


def refusal(tmp_path, text, **environ):
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, text, **environ)
    return str(caught.value)


def test_the_example_file_lists_every_setting_with_its_default():
    assert (ROOT / "etc/mailsvc.toml").read_text("utf-8") == example.render()


def test_the_example_file_changes_no_default():
    read = reader.build(schema.Settings, reader.read(ROOT / "etc/mailsvc.toml"), {})
    assert read == schema.Settings()


def test_every_setting_has_a_description():
    for table, key, field in reader.keys(schema.Settings):
        assert field.metadata["help"].endswith("."), f"{table}.{key}"
        if field.default is None:
            assert field.metadata["example"] is not None, f"{table}.{key} shows no example"


def test_the_development_file_loads():
    development = loading.load(ROOT / "etc/development.toml", {})
    assert development.base_url == "http://localhost:8025"
    assert development.delivery.routes == {"*": "smtp://127.0.0.1:2526"}
    assert development.database.embedded == Path("var/postgres").absolute()
    assert development.domains.allow_trust


def test_development_listens_on_loopback_only():
    development = loading.load(ROOT / "etc/development.toml", {})
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
def test_the_environment_overrides_the_file(tmp_path, name, value, read, expected):
    assert read(load(tmp_path, **{name: value})) == expected


@pytest.mark.parametrize("name", [ENVIRONMENT, OLD_ENVIRONMENT])
def test_the_encryption_keys_can_be_in_the_environment(tmp_path, name):
    assert load(tmp_path, GOOD, **{name: "1 AAAA"}).secrets.key is None


def test_unrelated_environment_variables_are_ignored(tmp_path):
    assert load(tmp_path, PATH="/bin", MAILSVC_CONFIG="x", MAILSVC_TEST_DATABASE="y") == load(tmp_path)


def test_a_byte_order_mark_is_no_mistake(tmp_path):
    assert load(tmp_path, "\ufeff" + GOOD) == load(tmp_path)


@pytest.mark.parametrize("service", ["MAILSVC", "MAILSVC_SMTP_RELAY"])
def test_variables_that_kubernetes_sets_for_a_service_are_ignored(tmp_path, service):
    link = "tcp://10.0.0.7:25"
    variables = {"SERVICE_HOST": "10.0.0.7", "SERVICE_PORT": "25", "SERVICE_PORT_SMTP_TLS": "465", "PORT": link, "PORT_25_TCP": link}
    variables |= {"PORT_25_TCP_PROTO": "tcp", "PORT_25_TCP_PORT": "25", "PORT_25_TCP_ADDR": "10.0.0.7"}
    assert load(tmp_path, **{f"{service}_{name}": value for name, value in variables.items()}) == load(tmp_path)


def test_no_setting_has_the_name_of_such_a_variable():
    assert [
        name for name in (reader.variable(table, key) for table, key, _ in reader.keys(schema.Settings)) if reader._of_a_service(name, "")
    ] == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[http]\nlissen = []", "The setting http.lissen does not exist. Known settings: listen, trusted_proxies"),
        ("[htp]", "The setting htp does not exist."),
        ("http = 3", "The setting http is 3; expected a table of settings."),
        ("[http]\nrate_limit = '10'", "The setting http.rate_limit is '10'; expected a whole number."),
        ("[http]\nrate_limit = true", "The setting http.rate_limit is true; expected a whole number."),
        ("[http]\nrate_limit = 0", "The setting http.rate_limit is 0; expected at least 1."),
        ("[http]\nlisten = 8025", "The setting http.listen is 8025; expected a list in which each item is a string."),
        ("[http]\nlisten = [8025]", "The setting http.listen[0] is 8025; expected a string."),
        ("[http]\nlisten = ['8025']", "The setting http.listen is a list; expected endpoints such as"),
        ("[delivery]\nroutes = {'*' = 1}", 'The setting delivery.routes."*" is 1; expected a string.'),
        ("[delivery]\nroutes = {'*' = 'mx'}", "The setting delivery.routes is a table; expected targets such as"),
        ("[delivery]\nexpire = inf", "The setting delivery.expire is inf; expected a number of at most 1,000,000,000."),
        ("[http]\nrate_limit = 1_000_000_000_000_001", "expected a whole number of at most 1,000,000,000,000,000."),
        ("[abuse]\nramp = [1_000_000_000_000_000_000]", "The setting abuse.ramp[0] is 1000000000000000000; expected a whole number of at"),
        ("[fetch]\nports = [443, 0]", "The setting fetch.ports is a list; expected ports from 1 to 65535."),
        ("[fetch]\nports = [65536]", "The setting fetch.ports is a list; expected ports from 1 to 65535."),
        ("[smtp]\nusername = ''", "The setting smtp.username is ''; expected a name without spaces around it."),
        ("[smtp]\nusername = 'mailsvc '", "The setting smtp.username is 'mailsvc '; expected a name without spaces around it."),
        ("[tracking]\nauthority = ''", "The setting tracking.authority is ''; expected a host name."),
        (
            GOOD + "http = {body_limit = 536870913}",
            "The setting http.spool is 2147483648; expected at least 2147483652, because of http.body_limit.",
        ),
        (GOOD + "audience = {import_size = 536870913}", "expected at least 2147483652, because of audience.import_size."),
        (GOOD + "limits = {message = 268435457}", "expected at least 2147483656, because of limits.message."),
        ("[delivery]\nretry = [60, 1e15]", "The setting delivery.retry[1] is 1000000000000000.0; expected a number of at most"),
        (
            "[delivery]\nnameservers = ['ns.example']",
            "The setting delivery.nameservers is a list; expected IP addresses, such as 127.0.0.1 or 127.0.0.1:5353: 'ns.example'",
        ),
        ("sender = 'Example <no-reply@localhost>'", "The setting sender is 'Example <no-reply@localhost>'; expected an email address: The"),
        ("[smtp]\npostmaster = 'a.b@-example.com'", "The setting smtp.postmaster is 'a.b@-example.com'; expected an email address: An"),
        ("[delivery]\nretry = []", "The setting delivery.retry is a list; expected one or more durations in seconds"),
        ("[database]\npool = 10.5", "The setting database.pool is 10.5; expected a whole number."),
        ("roles = ['smpt']", "The setting roles is a list; expected one or more of: http, smtp, delivery, ledger, webhooks, domains."),
        ("base_url = 'localhost'", "The setting base_url is 'localhost'; expected a URL without a path and without a trailing slash"),
        ("base_url = 'https://a/'", "The setting base_url is 'https://a/'; expected a URL without a path and without a trailing slash"),
        ("base_url = 'https://a/mail'", "The setting base_url is 'https://a/mail'; expected a URL without a path"),
        ("[log]\nlevel = 'loud'", "The setting log.level is 'loud'; expected one of: debug, info, warn, error."),
        ("", "Set exactly one of database.url and database.embedded; neither is set."),
        ("database = {url = 'x', embedded = 'y'}", "Set exactly one of database.url and database.embedded; both are set."),
        ("database = {url = 'x'}", "The setting base_url is missing"),
        ("base_url = 'https://a'\ndatabase = {url = 'x'}", "The setting delivery.ehlo_name is missing"),
        (GOOD + "http = {listen = []}", "The setting http.listen is empty"),
        (GOOD + "dashboard = {sign_up = true}", "The setting dashboard.sign_up needs the setting sender,"),
        (GOOD + "development = {dev_file = 'x'}", "The setting development.dev_file needs domains.allow_trust = true."),
        ("[smtp]\nlisten = {26 = 'tcp:26'}", "The setting smtp.listen is a table; expected endpoints such as"),
        ("[smtp]\ntrusted_networks = {'10.1.2.3/8' = 'x'}", "expected networks such as 10.1.0.0/16: 10.1.2.3/8 has host bits set."),
        (
            f"[smtp]\ntrusted_networks = {{'0.0.0.0/0' = '{KEY}'}}",
            "expected networks no wider than /8 (IPv4) or /32 (IPv6); 0.0.0.0/0 is wider.",
        ),
        (f"[smtp]\ntrusted_networks = {{'10.0.0.0/7' = '{KEY}'}}", "10.0.0.0/7 is wider."),
        (
            f"[smtp]\ntrusted_networks = {{'::/0' = '{KEY}'}}",
            "The setting smtp.trusted_networks is a table; expected networks no wider than /8",
        ),
        (f"[smtp]\ntrusted_networks = {{'2001:d00::/31' = '{KEY}'}}", "2001:d00::/31 is wider."),
        (f"[smtp]\ntrusted_networks = {{'::ffff:0:0/96' = '{KEY}'}}", "neither link-local nor contain IPv4 addresses, not ::ffff:0:0/96."),
        (f"[smtp]\ntrusted_networks = {{'::fffe:0:0/95' = '{KEY}'}}", "neither link-local nor contain IPv4 addresses, not ::fffe:0:0/95."),
        (
            f"[smtp]\ntrusted_networks = {{'64:ff9b::a00:0/104' = '{KEY}'}}",
            "neither link-local nor contain IPv4 addresses, not 64:ff9b::a00:0/104.",
        ),
        (f"[smtp]\ntrusted_networks = {{'fe80::/64' = '{KEY}'}}", "neither link-local nor contain IPv4 addresses, not fe80::/64."),
        (
            "[smtp]\ntrusted_networks = ['10.0.0.0/8']",
            "The setting smtp.trusted_networks is a list; expected a table in which each value is a string.",
        ),
        (
            GOOD.replace('self_signed = "tls"', ""),
            "The SMTP ports need one certificate, but none is set. Set smtp.certificate and smtp.key,",
        ),
        (GOOD.replace('tls"', 'tls", certbot = "x"'), "The SMTP ports need one certificate, but certbot and self_signed are set."),
        (GOOD.replace("self_signed", "key"), "Set smtp.certificate and smtp.key together"),
        ("base_url", "is not valid TOML"),
    ],
)
def test_the_message_for_a_wrong_setting_names_its_key(tmp_path, text, sentence):
    assert sentence in refusal(tmp_path, text)


def test_people_can_sign_up_with_a_provider_if_there_is_no_mail(tmp_path):
    assert load(tmp_path, GOOD + "dashboard = {sign_up = true}\nsign_in = {google_client = 'x'}").dashboard.sign_up


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("MAILSVC_HTTP__LISSEN", "[]", "There is no setting for the environment variable MAILSVC_HTTP__LISSEN."),
        ("MAILSVC_PORT", "8025", "There is no setting for the environment variable MAILSVC_PORT."),
        ("MAILSVC_CONFIG_FILE", "x", "There is no setting for the environment variable MAILSVC_CONFIG_FILE."),
        ("MAILSVC_DATABASE__POOL", "ten", "The environment variable MAILSVC_DATABASE__POOL is 'ten'; expected a whole number"),
        (
            "MAILSVC_DATABASE__POOL",
            "10\n[http]",
            "The environment variable MAILSVC_DATABASE__POOL is '10\\n[http]'; expected a whole number",
        ),
        ("MAILSVC_DATABASE__POOL", "'10'", "The setting database.pool is '10'; expected a whole number."),
    ],
)
def test_the_message_for_a_wrong_variable_names_it(tmp_path, name, value, sentence):
    assert sentence in refusal(tmp_path, GOOD, **{name: value})


def test_a_secret_is_never_shown(tmp_path):
    assert refusal(tmp_path, GOOD + "secrets = { key = 54321 }") == "The setting secrets.key is not a string."
    assert "54321" not in refusal(tmp_path, "database = { url = 54321 }")


@pytest.mark.parametrize("name", ["METRICS__TOKEN", "DATABASE__URL", "SECRETS__KEY", "AUDIT__AUTHORIZATION"])
def test_a_secret_is_not_empty(tmp_path, name):
    sentence = f"The setting {name.lower().replace('__', '.')} is empty; give it a value, or leave it out."
    assert refusal(tmp_path, GOOD, **{f"MAILSVC_{name}": " "}) == sentence


@pytest.mark.parametrize(
    "url",
    ["mysql://db.example.com/x", "s3cret", *(f"postgresql://mailsvc:s3{character}cret@db/mailsvc" for character in "%@/")],
)
def test_a_database_url_that_is_not_valid_is_explained_without_its_password(tmp_path, url):
    sentence = refusal(tmp_path, GOOD, MAILSVC_DATABASE__URL=url)
    assert sentence.startswith("The setting database.url is not valid; expected a URL such as postgresql://mailsvc@db.example.com/mailsvc;")
    assert "cret" not in sentence and "s3" not in sentence


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://mailsvc:s3%25cret@a,b:5433/mailsvc",
        "postgresql://a:/b",
        "host=/run/postgresql dbname=mailsvc",
        "postgresql://mailsvc@/mailsvc?host=/run",
    ],
)
def test_database_urls_of_libpq_are_valid(tmp_path, url):
    assert load(tmp_path, MAILSVC_DATABASE__URL=url).database.url == url


@pytest.mark.parametrize("key", ["ms_" + "s3cret" * 6, "", KEY + "0", KEY.upper(), KEY.replace("-", "")])
def test_a_trusted_network_needs_the_id_of_a_key_and_a_key_itself_is_never_shown(tmp_path, key):
    sentence = "The setting smtp.trusted_networks is a table; expected the ID of an API key for ::1, as listed by `mailsvc key list`."
    assert refusal(tmp_path, f"[smtp]\ntrusted_networks = {{'::1' = '{key}'}}") == sentence


def test_a_trusted_network_must_not_contain_load_balancers(tmp_path):
    networks = {"127.0.0.1": KEY, "10.0.0.0/8": KEY, "fd00:1::/32": KEY}
    found = trusted_networks(schema.Smtp(trusted_networks=networks, trusted_proxies=("10.1.0.0/16",)))
    assert [found.key_of(host) for host in ("127.0.0.1", "10.2.0.1", "10.1.0.1", "fd00:1::1")] == [UUID(KEY), UUID(KEY), None, UUID(KEY)]
    with pytest.raises(SettingsError, match=re.escape("smtp.trusted_networks has fd00:1::/32, inside smtp.trusted_proxies")):
        trusted_networks(schema.Smtp(trusted_networks=networks, trusted_proxies=("fd00::/8",)))
    assert trusted_networks(schema.Smtp()).key_of("127.0.0.1") is None


def test_a_wrong_source_of_another_region_is_named(tmp_path):
    found = load(tmp_path, GOOD + 'regions = { us-east-1 = { host = "a.example" }, eu = { host = "b.example", sources = ["nonsense"] } }')
    with pytest.raises(SettingsError, match=r"The setting regions\.eu\.sources has 'nonsense' is not like"):
        sources_of_regions(found)


def test_a_missing_file_is_reported(tmp_path):
    with pytest.raises(SettingsError, match="cannot be read: No such file"):
        loading.load(tmp_path / "none.toml", {})


def test_every_setting_is_used():
    """Some module reads it by name, or delivery/limits has a field with the same name."""
    paths = [
        path for path in (ROOT / "mailsvc").rglob("*.py") if path.parent.name != "settings" or path.name in ("retention.py", "regions.py")
    ]
    sources = "".join(path.read_text("utf-8") for path in paths)
    limits = {field.name for field in attrs.fields(DeliveryLimits)}
    unused = [
        f"{table}.{key}"
        for table, key, _ in reader.keys(schema.Settings)
        if not re.search(rf"\.{key}\b", sources) and not (table == "delivery" and key in limits)
    ]
    assert not unused


def test_delivery_limits_have_the_same_defaults():
    delivery = schema.Delivery()
    shared = [field for field in attrs.fields(DeliveryLimits) if hasattr(delivery, field.name)]
    assert len(shared) >= 20
    assert {field.name: field.default for field in shared if not isinstance(field.default, attrs.Factory)} == {
        field.name: getattr(delivery, field.name) for field in shared if not isinstance(field.default, attrs.Factory)
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
def test_metrics_need_a_unix_socket_or_loopback_with_a_token(tmp_path, listen, token, wrong):
    text = GOOD + f"metrics.listen = ['{listen}']\n" + (f'metrics.token = "{token}"\n' if token else "")
    if wrong is None:
        assert load(tmp_path, text).metrics.listen == (listen,)
    else:
        assert wrong in refusal(tmp_path, text)


@pytest.mark.parametrize(
    ("old", "new"),
    [(("http", "log_days"), "retention.requests"), (("smtp", "receipts"), "retention.receipts")],
)
def test_a_replaced_setting_is_refused_with_the_new_name(tmp_path, old, new):
    table, key = old
    text = GOOD.replace('self_signed = "tls"', 'self_signed = "tls", receipts = 5') if table == "smtp" else GOOD + "[http]\nlog_days = 5\n"
    assert refusal(tmp_path, text) == f"The setting {table}.{key} has been replaced by {new}."
    name = f"MAILSVC_{table}__{key}".upper()
    assert (
        refusal(tmp_path, GOOD, **{name: "5"})
        == f"The environment variable {name} has been replaced by MAILSVC_{new.replace('.', '__').upper()}."
    )


def test_every_former_key_leads_to_one_that_exists():
    known = {f"{table}.{key}" for table, key, _ in reader.keys(schema.Settings)}
    former = {**loading.MOVED, **loading.RENAMED}
    assert set(former.values()) <= known and not set(former) & known
    assert all(old.split(".")[0] == new.split(".")[0] for old, new in loading.RENAMED.items())


def test_a_renamed_setting_keeps_its_old_name_with_a_warning(tmp_path):
    events: list[dict[str, object]] = []
    globalLogPublisher.addObserver(events.append)
    try:
        loaded = load(tmp_path, GOOD.replace("smtp = {", "smtp = { stranger_octets = 5000,"), MAILSVC_DATABASE__WITNESS="/m")
    finally:
        globalLogPublisher.removeObserver(events.append)
    assert loaded.smtp.unauthenticated_bytes == 5000 and loaded.database.restore_marker == Path("/m")
    assert [(event["old"], event["new"]) for event in events if "old" in event] == [
        ("MAILSVC_DATABASE__WITNESS", "MAILSVC_DATABASE__RESTORE_MARKER"),
        ("smtp.stranger_octets", "smtp.unauthenticated_bytes"),
    ]


def test_a_renamed_setting_is_refused_under_both_names(tmp_path):
    both = GOOD.replace("smtp = {", "smtp = { stranger_octets = 5000, unauthenticated_bytes = 6000,")
    assert (
        refusal(tmp_path, both)
        == "The settings smtp.stranger_octets and smtp.unauthenticated_bytes are the same; remove smtp.stranger_octets."
    )
    variables = {"MAILSVC_DATABASE__WITNESS": "/m", "MAILSVC_DATABASE__RESTORE_MARKER": "/m"}
    assert "are the same setting; remove MAILSVC_DATABASE__WITNESS." in refusal(tmp_path, GOOD, **variables)
