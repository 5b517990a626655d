// Passkeys: a form with data-passkey asks the device, puts its response into a field and is then submitted as usual.
"use strict";
(() => {
  const bytes = (text) => Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), (one) => one.charCodeAt(0));
  const text = (buffer) => btoa(String.fromCharCode(...new Uint8Array(buffer))).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
  const named = (list) => (list || []).map((one) => ({ ...one, id: bytes(one.id) }));

  function read(options) {
    const read = { ...options, challenge: bytes(options.challenge) };
    if (options.user) read.user = { ...options.user, id: bytes(options.user.id) };
    if (options.excludeCredentials) read.excludeCredentials = named(options.excludeCredentials);
    if (options.allowCredentials) read.allowCredentials = named(options.allowCredentials);
    return read;
  }

  function write(credential) {
    const response = {};
    for (const name of ["clientDataJSON", "attestationObject", "authenticatorData", "signature", "userHandle"])
      if (credential.response[name]) response[name] = text(credential.response[name]);
    return JSON.stringify({ id: credential.id, rawId: text(credential.rawId), type: credential.type, response });
  }

  for (const form of document.querySelectorAll("[data-passkey]")) {
    if (!window.PublicKeyCredential) {
      form.hidden = true;
      continue;
    }
    form.addEventListener("submit", async (event) => {
      const answer = form.elements.answer;
      if (answer.value) return;
      event.preventDefault();
      const button = form.querySelector("button"), why = form.querySelector("[data-why]");
      button.disabled = true;
      why.hidden = true;
      try {
        answer.value = write(await navigator.credentials[form.dataset.passkey]({ publicKey: read(JSON.parse(form.dataset.options)) }));
        form.requestSubmit();
      } catch (error) {
        why.textContent = error.name === "InvalidStateError" ? "This device already has one of your passkeys." : "The device didn’t provide a passkey. Try again.";
        why.hidden = false;
        button.disabled = false;
      }
    });
  }
})();
