// The editor's libraries make <style> elements, which the page's policy allows only with its nonce. Must be imported first.
const nonce = document.currentScript?.dataset.nonce ?? "";
const create = document.createElement.bind(document);
document.createElement = (name, options) => {
  const made = create(name, options);
  if (String(name).toLowerCase() === "style") made.nonce = nonce;
  return made;
};
