// How Sphinx orders what its search finds: by its own weights, but decisions, notes and what is for contributors come
// after the pages that help, and an error's code after a section that is named for what people look for.
var Scorer = {
  score: ([docname, title, anchor, descr, score, filename]) =>
    /^(adr|architecture|benchmarks|contributing|crashes|testbed)/.test(docname)
      ? score - 100
      : score - (docname === "errors" && anchor ? 1 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
