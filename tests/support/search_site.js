// node search_site.js SITE QUERY...: a line of JSON for each query, the places that the site's search finds, best first.
const fs = require("fs");
const path = require("path");
const vm = require("vm");
const [site, ...queries] = process.argv.slice(2);
const element = () => ({ classList: {}, dataset: {}, replaceChildren() {} });
const document = { getElementById: element, documentElement: element(), readyState: "loading", addEventListener() {} };
// What the theme's other scripts bring.
const page = { document, SPHINX_HIGHLIGHT_ENABLED: false, _: (text) => text, _ready() {}, _removeChildren() {} };
const context = vm.createContext({ ...page, window: page });
const scripts = ["_static/language_data.js", "_static/searchtools.js", "searchindex.js"];
for (const script of scripts) vm.runInContext(fs.readFileSync(path.join(site, script), "utf8"), context);
context.Stemmer = page.Stemmer;
for (const query of queries) {
  const found = vm.runInContext(`Search._performSearch(...Search._parseQuery(${JSON.stringify(query)}))`, context);
  console.log(JSON.stringify(found.reverse().map(([name, , anchor]) => name + anchor)));
}
