// How search ranks pages. Sphinx takes a page for as good as the best of its words, so that most pages which have all
// words are equal, and it links to their top. Here a page counts by how many of the words belong to one of its sections:
// are in its heading, or in its words in SOUGHT (docs/conf.py). A result leads to the section that has most of them.
const ASIDE = /^(results|docs\/(adr|api|benchmarks|design|methods)|CHANGELOG|CONTRIBUTING)/; // sought by name, if at all

let sections; // by number of page, then by anchor: {heading, stems}

const sectionsOf = (file) => {
  if (!sections) {
    sections = {};
    const stemmer = new Stemmer();
    const section = (file, id) => ((sections[file] ??= {})[id ? `#${id}` : ""] ??= { stems: new Set() });
    const add = (one, text) => splitQuery(text.toLowerCase()).forEach((word) => one.stems.add(stemmer.stemWord(word)));
    for (const [heading, found] of Object.entries(Search._index.alltitles))
      for (const [file, id] of found) add(Object.assign(section(file, id), { heading }), heading);
    for (const [entry, found] of Object.entries(Search._index.indexentries))
      for (const [file, id, main] of found) if (main) add(section(file, id), entry);
  }
  return sections[file] ?? {};
};

var Scorer = {
  score: (result) => {
    const [page, title, anchor, , score, , kind] = result;
    if (kind !== SearchResultKind.text && kind !== SearchResultKind.index) return score;
    const found = sectionsOf(Search._index.docnames.indexOf(page));
    const name = (where) => {
      result[2] = where;
      const { heading } = found[where] ?? {};
      result[1] = heading && heading !== title ? `${title} > ${heading}` : title;
    };
    if (kind === SearchResultKind.index) {
      name(anchor);
      return score;
    }
    const words = [...Search._parseQuery(new URLSearchParams(window.location.search).get("q"))[1]];
    let worth = 0;
    for (const [where, { stems }] of Object.entries(found)) {
      const shared = words.filter((word) => stems.has(word)).length;
      const one = 10 * shared + (5 * shared) / stems.size;
      if (one <= worth) continue;
      worth = one;
      name(2 * shared > words.length ? where : anchor);
    }
    return score + worth - (ASIDE.test(page) ? 8 : 0);
  },

  // Sphinx's own values
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};

// Where no page has all words, pages that have some of them are found, those with most first.
const withAll = Search.performTermsSearch;
Search.performTermsSearch = (words, excluded) => {
  const found = withAll(words, excluded);
  if (found.length > 0 || words.size < 2) return found;
  const pages = new Map();
  for (const word of words)
    for (const result of withAll(new Set([word]), excluded)) {
      const page = pages.get(result[0]);
      if (page) page[4] += result[4];
      else pages.set(result[0], result);
    }
  return [...pages.values()];
};
