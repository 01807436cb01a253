// The worker that takes the text out of a PDF, by pdf.js. A PDF may be made to keep it busy for ever, or worse: it has no
// page to reach, its policy forbids eval, and the page ends it when it takes too long (composer.js).
//
// In:  an ArrayBuffer
// Out: {text} of all pages; empty where they are pictures. {failed: true} where it is no PDF, or pdf.js was not built in
'use strict';

async function textOf(data) {
  importScripts('pdf.js', 'pdf.worker.js');
  const file = await pdfjsLib.getDocument({data, isEvalSupported: false, disableFontFace: true, verbosity: 0}).promise;
  const pages = [];
  for (let number = 1; number <= file.numPages; ++number) {
    const {items} = await (await file.getPage(number)).getTextContent();
    pages.push(items.map(item => item.str + (item.hasEOL ? '\n' : '')).join(''));
  }
  return pages.join('\n\n').trim();
}

onmessage = async ({data}) => {
  if (!(data instanceof ArrayBuffer)) return;  // pdf.js talks to itself
  try {
    postMessage({text: await textOf(data)});
  } catch {
    postMessage({failed: true});
  }
};
