// "Try it": sends the request of a sample to the development server that serves this page. Elsewhere there is no form.
"use strict";

const root = new URL(document.documentElement.dataset.content_root || "./", location.href);

function field(form, label, value, tag = "input") {
  const outer = document.createElement("label");
  const control = document.createElement(tag);
  control.value = value;
  control.autocomplete = "off";
  outer.append(label, control);
  form.append(outer);
  return control;
}

function built(holder) {
  const call = JSON.parse(holder.dataset.call);
  const form = document.createElement("form");
  const title = document.createElement("strong");
  title.textContent = `Try it: ${call.method} ${call.path}`;
  form.append(title);
  const key = call.key ? field(form, "API key", sessionStorage.getItem("mailsvc-try-key") || "") : null;
  const controls = call.parameters.map(([name, place, example]) => [name, place, field(form, name, example)]);
  const body = call.body ? field(form, "Body", call.body, "textarea") : null;
  const button = document.createElement("button");
  button.textContent = "Send";
  const output = document.createElement("pre");
  output.tabIndex = 0;
  output.setAttribute("role", "log");
  output.setAttribute("aria-label", "Response");
  form.append(button);
  holder.append(form, output);
  holder.hidden = false;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const headers = {};
    if (key) {
      headers.Authorization = `Bearer ${key.value.trim()}`;
      sessionStorage.setItem("mailsvc-try-key", key.value.trim());
    }
    if (body) headers["Content-Type"] = "application/json";
    const query = new URLSearchParams();
    let path = call.path;
    for (const [name, place, control] of controls) {
      if (place === "path") path = path.replace(`{${name}}`, encodeURIComponent(control.value));
      else if (place === "header" && control.value) headers[name] = control.value;
      else if (place === "query" && control.value) query.set(name, control.value);
    }
    const address = query.size ? `${path}?${query}` : path;
    try {
      const response = await fetch(address, { method: call.method, headers, body: body ? body.value : undefined });
      output.textContent = `${response.status}\n${await response.text()}`;
    } catch (error) {
      output.textContent = `The request failed: ${error.message}`;
    }
  });
}

const forms = document.querySelectorAll(".try[data-call]");
if (forms.length)
  fetch(new URL("try.json", root))
    .then((response) => response.json())
    .then((allowed) => allowed && forms.forEach(built))
    .catch(() => {});
