// Questions in place that are closed again. They also work without this file.
"use strict";
(() => {
  function close(question) {
    question.open = false;
    question.querySelector("summary").focus();
  }
  document.addEventListener("click", ({ target }) => {
    if (target.closest("[data-close]")) close(target.closest("details"));
  });
  document.addEventListener("keydown", ({ key, target }) => {
    const question = key === "Escape" && target.closest("details.confirm[open]");
    if (question) close(question);
  });
})();
