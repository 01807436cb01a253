// Small helpers for the page's elements.

export const $ = id => document.getElementById(id);

/// An element with a class and a text; either may be left out.
export function make(tag, className = '', text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

/// A button that is not a form's. `label`: what a screen reader says where the text is a sign.
export function button(text, className, onclick, label) {
  const element = make('button', className, text);
  element.type = 'button';
  element.onclick = onclick;
  if (label) {
    element.title = label;
    element.setAttribute('aria-label', label);
  }
  return element;
}

/// Says above the message what went wrong with it, a paragraph a problem, until the next call.
export function complain(...problems) {
  const old = [...$('problem').children].map(paragraph => paragraph.textContent);
  if (old.join('\n') !== problems.join('\n')) $('problem').replaceChildren(...problems.map(text => make('p', '', text)));
}

/// Puts a text into the clipboard. On plain HTTP from another machine browsers have no clipboard object.
export async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = make('textarea', 'sr');
  field.value = text;
  document.body.append(field);
  field.select();
  document.execCommand('copy');
  field.remove();
}

/// Gives the browser a file to save.
export function download(name, type, text) {
  const link = make('a');
  link.href = URL.createObjectURL(new Blob([text], {type}));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// What the page remembers in this browser; private windows may refuse.
export function keep(name, value) {
  try { localStorage.setItem('millrace.' + name, value); } catch { /* then it is forgotten */ }
}
export function kept(name) {
  try { return localStorage.getItem('millrace.' + name); } catch { return null; }
}
