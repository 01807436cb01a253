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

// Drawn in a square of 16: lines alone, in the colour of the text.
const ICONS = {
  copy: 'M5.5 5.5V2.5h8v8h-3M2.5 5.5h8v8h-8z',
  edit: 'M2.5 13.5l.8-3.2 7.6-7.6 2.4 2.4-7.6 7.6zM9.6 4l2.4 2.4',
  again: 'M13 8a5 5 0 1 1-1.6-3.7M13.2 2.2v2.9h-2.9',
  export: 'M8 2.5v8M4.8 7.5L8 10.7l3.2-3.2M2.5 11v2.5h11V11',
  remove: 'M2.5 4.5h11M6 4.5v-2h4v2M4 4.5l.7 9h6.6l.7-9M6.7 7v4M9.3 7v4',
  settings: 'M2.5 4.5h6M12 4.5h1.5M2.5 11.5h1.5M7.5 11.5h6M10.2 2.8v3.4M5.8 9.8v3.4',
  done: 'M3 8.5l3.3 3.3L13 4.5',
};
export function icon(name) {
  const picture = document.createElementNS('http://www.w3.org/2000/svg', 'svg'), lines = document.createElementNS('http://www.w3.org/2000/svg', 'path');
  lines.setAttribute('d', ICONS[name]);
  picture.setAttribute('viewBox', '0 0 16 16');
  picture.setAttribute('class', 'icon');
  picture.setAttribute('aria-hidden', 'true');
  picture.append(lines);
  return picture;
}
/// Puts icons into the buttons that name them: data-icon.
export function fillIcons() {
  for (const one of document.querySelectorAll('[data-icon]')) one.replaceChildren(icon(one.dataset.icon));
}
/// A button that is an icon. `label`: what it does, for a tooltip and for screen readers.
export function iconButton(name, className, onclick, label) {
  const made = button('', 'quiet ' + className, onclick, label);
  made.append(icon(name));
  return made;
}

/// Shows above the message what went wrong, a paragraph a problem, until the next call.
export function complain(...problems) {
  const old = [...$('problem').children].map(paragraph => paragraph.textContent);
  if (old.join('\n') !== problems.join('\n')) $('problem').replaceChildren(...problems.map(text => make('p', '', text)));
}
/// The same of something that can be tried again.
export function complainAbout(problem, label, retry) {
  complain(problem);
  $('problem').lastChild.append(' ', button(label, 'plain small', () => {
    complain();
    retry();
  }));
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
