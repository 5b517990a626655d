// If signing in, a confirmation or an error comes between a form and what it should do, what somebody entered is in the form again
// afterwards. It is kept in this tab until the next page, and never a password or a file.
"use strict";
(() => {
  const KEPT = "mailsvc-kept-form";
  const between = document.querySelector("[data-between]");  // a page of signing in, or of an error
  const who = document.querySelector(".who")?.textContent;   // the account and the user

  const fieldsOf = (form) => [...form.elements].filter((one) => one.name && one.matches("textarea, select, input")
    && !["hidden", "password", "file"].includes(one.type));
  const nameOf = (form) => form.getAttribute("action") ?? location.pathname;

  function put(kept) {
    try { sessionStorage.setItem(KEPT, JSON.stringify(kept)); } catch { /* not allowed in this browser, or too long */ }
  }
  function take() {
    try {
      const kept = JSON.parse(sessionStorage.getItem(KEPT));
      sessionStorage.removeItem(KEPT);
      return kept;
    } catch { return null; }
  }

  function fillIn(form, fields) {
    for (const one of fieldsOf(form)) {
      const choice = ["checkbox", "radio"].includes(one.type);
      const found = fields.find(([name, value]) => name === one.name && (!choice || value === one.value));
      if (!found) continue;
      if (choice) [, , one.checked] = found;
      else [, one.value] = found;
    }
    const note = document.createElement("p");
    Object.assign(note, { className: "note small", role: "status", textContent: "Your changes aren’t saved yet. Check them, then submit the form again." });
    form.prepend(note);
    for (let around = form.closest("details"); around; around = around.parentElement.closest("details")) around.open = true;
    fieldsOf(form)[0].focus();
  }

  document.addEventListener("submit", (event) => {
    const form = event.target, fields = fieldsOf(form);
    if (event.defaultPrevented || between || form.method !== "post" || !fields.length) return;
    put({ form: nameOf(form), who, fields: fields.map((one) => [one.name, one.value, one.checked]) });
  });

  const kept = take();
  if (!kept) return;
  if (between) { put({ ...kept, interrupted: true }); return; }
  const form = kept.interrupted && kept.who === who && [...document.forms].find((one) => one.method === "post" && nameOf(one) === kept.form);
  if (form && fieldsOf(form).length) fillIn(form, kept.fields);
})();
