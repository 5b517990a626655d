// Stands for the package `prismjs`: code is not colored.
const Prism = { languages: { javascript: {} }, highlight: (code) => code };

export default Prism;
