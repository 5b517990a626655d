"""One API request as a program in eight languages. Pure.

Each program is complete. It reads the address of the server from BASE_URL and the key from API_KEY, and prints the response.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import attrs


@attrs.frozen
class Call:
    """`path` has no placeholders. `body`: what is sent as JSON, None for no body."""

    method: str
    path: str
    key: bool
    body: Any = None

    @property
    def json(self) -> str:
        return json.dumps(self.body, indent=2, ensure_ascii=False)

    def headers(self, name: str, value: str) -> list[str]:
        """The headers in a language's syntax: `name` with an API key, `value` with JSON."""
        return [name] * self.key + [value] * (self.body is not None)


def curl(call: Call) -> str:
    parts = [f'curl -X {call.method} "$BASE_URL{call.path}"']
    parts += call.headers('-H "Authorization: Bearer $API_KEY"', '-H "Content-Type: application/json"')
    if call.body is not None:
        parts.append("-d '" + call.json.replace("'", "'\\''") + "'")
    return " \\\n  ".join(parts)


def node(call: Call) -> str:
    headers = ", ".join(call.headers("Authorization: `Bearer ${process.env.API_KEY}`", '"Content-Type": "application/json"'))
    lines = [f"const response = await fetch(`${{process.env.BASE_URL}}{call.path}`, {{", f'  method: "{call.method}",']
    lines += [f"  headers: {{ {headers} }},"] if headers else []
    lines += [f"  body: JSON.stringify({call.json.replace(chr(10), chr(10) + '  ')}),"] if call.body is not None else []
    return "\n".join([*lines, "});", "console.log(response.status, await response.text());"])


def python(call: Call) -> str:
    headers = ", ".join(call.headers('"Authorization": f"Bearer {os.environ[\'API_KEY\']}"', '"Content-Type": "application/json"'))
    arguments = [f'os.environ["BASE_URL"] + "{call.path}"', f'method="{call.method}"']
    arguments += [f"headers={{{headers}}}"] if headers else []
    arguments += [f"data=json.dumps({_literal(call.body, '    ', _python_scalar)}).encode()"] if call.body is not None else []
    imports = ["import json"] * (call.body is not None) + ["import os", "import urllib.request"]
    request = "".join(f"    {each},\n" for each in arguments)
    return (
        "\n".join(imports) + f"\n\nrequest = urllib.request.Request(\n{request})\n"
        "with urllib.request.urlopen(request) as response:\n    print(response.status, response.read().decode())"
    )


def _literal(value: Any, indent: str, scalar: Callable[[Any], str]) -> str:
    """A JSON value in the syntax of a language that writes objects and lists as JSON does, and everything else as `scalar` does."""
    deeper = indent + "    "
    if isinstance(value, Mapping) and value:
        inside = "".join(f"{deeper}{scalar(name)}: {_literal(each, deeper, scalar)},\n" for name, each in value.items())
        return f"{{\n{inside}{indent}}}"
    if isinstance(value, list) and value:
        return "[\n" + "".join(f"{deeper}{_literal(each, deeper, scalar)},\n" for each in value) + f"{indent}]"
    return scalar(value)


def _python_scalar(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def go(call: Call) -> str:
    body = "nil" if call.body is None else "strings.NewReader(" + _go_string(call.json) + ")"
    packages = ["fmt", "io", "net/http", "os", *(["strings"] if call.body is not None else [])]
    headers = call.headers(
        '	request.Header.Set("Authorization", "Bearer "+os.Getenv("API_KEY"))',
        '	request.Header.Set("Content-Type", "application/json")',
    )
    failed = "	if err != nil {\n		panic(err)\n	}"
    return "\n".join(
        [
            "package main\n\nimport (",
            *(f'	"{name}"' for name in packages),
            ")\n\nfunc main() {",
            f'	request, err := http.NewRequest("{call.method}", os.Getenv("BASE_URL")+"{call.path}", {body})',
            failed,
            *headers,
            "	response, err := http.DefaultClient.Do(request)",
            failed,
            "	defer response.Body.Close()",
            "	text, err := io.ReadAll(response.Body)",
            failed,
            "	fmt.Println(response.StatusCode, string(text))\n}",
        ]
    )


def _go_string(text: str) -> str:
    return f"`{text}`" if "`" not in text else json.dumps(text, ensure_ascii=False)


def php(call: Call) -> str:
    headers = ", ".join(call.headers("'Authorization: Bearer ' . getenv('API_KEY')", "'Content-Type: application/json'"))
    lines = ["<?php", f"$request = curl_init(getenv('BASE_URL') . '{call.path}');", "curl_setopt_array($request, ["]
    lines += [f"    CURLOPT_CUSTOMREQUEST => '{call.method}',", "    CURLOPT_RETURNTRANSFER => true,"]
    lines += [f"    CURLOPT_HTTPHEADER => [{headers}],"] if headers else []
    lines += [f"    CURLOPT_POSTFIELDS => <<<'JSON'\n{call.json}\nJSON,"] if call.body is not None else []
    return "\n".join([*lines, "]);", "echo curl_exec($request), PHP_EOL;"])


def ruby(call: Call) -> str:
    headers = call.headers('"Authorization" => "Bearer #{ENV.fetch("API_KEY")}"', '"Content-Type" => "application/json"')
    lines = ['require "net/http"', "", f'uri = URI(ENV.fetch("BASE_URL") + "{call.path}")']
    lines.append(f"request = Net::HTTP::{call.method.capitalize()}.new({', '.join(['uri', *headers])})")
    if call.body is not None:
        lines.append(f"request.body = <<~'JSON'\n{textwrap.indent(call.json, '  ')}\nJSON")
    lines.append('response = Net::HTTP.start(uri.host, uri.port, use_ssl: uri.scheme == "https") { |http| http.request(request) }')
    return "\n".join([*lines, "puts response.code, response.body"])


def rust(call: Call) -> str:
    base, key = '    let base = std::env::var("BASE_URL")?;', '    let key = std::env::var("API_KEY")?;'
    steps = [f'.{call.method.lower()}(format!("{{base}}{call.path}"))', *[".bearer_auth(key)"] * call.key]
    if call.body is not None:
        steps.append(f".json(&serde_json::json!({_literal(call.body, ' ' * 8, _rust_scalar)}))")
    chain = "".join(f"\n        {step}" for step in [*steps, ".send()?"])
    needs = 'the crate reqwest with its feature "blocking"'
    if call.body is not None:
        needs = 'the crates serde_json and reqwest, the latter with its features "blocking" and "json"'
    lines = [f"// Needs {needs}.", "fn main() -> Result<(), Box<dyn std::error::Error>> {"]
    lines += [base, *[key] * call.key, f"    let response = reqwest::blocking::Client::new(){chain};"]
    return "\n".join([*lines, '    println!("{} {}", response.status(), response.text()?);', "    Ok(())", "}"])


def _rust_scalar(value: Any) -> str:
    """A string, number or similar. Rust and JSON escape control characters differently."""
    text = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, str) or not any(sign < " " for sign in value):
        return text
    return '"' + "".join(f"\\u{{{ord(sign):x}}}" if sign < " " else json.dumps(sign, ensure_ascii=False)[1:-1] for sign in value) + '"'


def dotnet(call: Call) -> str:
    address = f'Environment.GetEnvironmentVariable("BASE_URL") + "{call.path}"'
    lines = ["using System.Text;", ""] if call.body is not None else []
    lines += ["using var client = new HttpClient();"]
    lines += [f"using var request = new HttpRequestMessage(HttpMethod.{call.method.capitalize()}, {address});"]
    lines += ['request.Headers.Add("Authorization", "Bearer " + Environment.GetEnvironmentVariable("API_KEY"));'] * call.key
    if call.body is not None:
        lines += [f'request.Content = new StringContent("""\n{call.json}\n""", Encoding.UTF8, "application/json");']
    lines += ["using var response = await client.SendAsync(request);"]
    return "\n".join([*lines, 'Console.WriteLine($"{(int)response.StatusCode} {await response.Content.ReadAsStringAsync()}");'])


def over_smtp(mail: Mapping[str, Any]) -> str:
    """The same email over SMTP, with swaks. The server is SMTP_SERVER, as in `localhost:5587`."""
    address = mail["from"].partition("<")[2].rstrip(">") or mail["from"]
    lines = ['swaks --server "$SMTP_SERVER" --tls --auth PLAIN --auth-user mailsvc --auth-password "$API_KEY"']
    lines += [f"--from {address} --to {mail['to'][0]}", f"--header 'From: {mail['from']}' --header 'Subject: {mail['subject']}'"]
    lines += [f"--header 'Content-Type: text/html' --body '{mail['html']}'"]
    return " \\\n  ".join(lines)


# Name of the language → name of its syntax, and the program.
LANGUAGES: Mapping[str, tuple[str, Callable[[Call], str]]] = {
    "curl": ("bash", curl),
    "Node.js": ("js", node),
    "Python": ("python", python),
    "Go": ("go", go),
    "PHP": ("php", php),
    "Ruby": ("ruby", ruby),
    "Rust": ("rust", rust),
    ".NET": ("csharp", dotnet),
}
