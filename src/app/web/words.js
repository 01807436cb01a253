// The page's own words in the reader's language: words-XX.js has them, a key a phrase, with {places} for values.
import de from './words-de.js';
import en from './words-en.js';
import es from './words-es.js';
import fr from './words-fr.js';
import ja from './words-ja.js';
import zh from './words-zh.js';
import {keep, kept} from './dom.js';

export const languages = {en, de, fr, es, zh, ja};

const wanted = [kept('language'), ...navigator.languages.map(name => name.slice(0, 2))].find(name => name in languages) ?? 'en';
export const language = wanted;
const words = languages[wanted];

/// The phrase of this key, its {places} filled.
export function t(key, values = {}) {
  return (words[key] ?? en[key] ?? key).replace(/\{(\w+)\}/g, (whole, name) => name in values ? values[name] : whole);
}

/// A number as the reader writes it.
export const number = (value, digits = 0) =>
  value.toLocaleString(wanted, {minimumFractionDigits: digits, maximumFractionDigits: digits});
/// One digit behind the point where there are few before it.
export const rough = value => number(value, value < 10 ? 1 : 0);

export function bytes(n) {
  for (const unit of ['B', 'kB', 'MB', 'GB', 'TB']) {
    if (n < 1000 || unit === 'TB') return `${n < 10 && unit !== 'B' ? number(n, 1) : number(Math.round(n))} ${unit}`;
    n /= 1000;
  }
}

/// Seconds as people say them.
export function duration(seconds) {
  if (seconds < 90) return t('seconds', {n: number(Math.max(1, Math.round(seconds)))});
  return t('minutes', {n: number(Math.round(seconds / 60))});
}

/// Puts the words into elements that name them: data-text, data-label (title too), data-placeholder.
export function fillWords(root = document) {
  document.documentElement.lang = wanted;
  for (const element of root.querySelectorAll('[data-text]')) element.textContent = t(element.dataset.text);
  for (const element of root.querySelectorAll('[data-label]')) {
    element.setAttribute('aria-label', t(element.dataset.label));
    if (element.matches('button, input, select')) element.title = t(element.dataset.label);
  }
  for (const element of root.querySelectorAll('[data-placeholder]')) element.placeholder = t(element.dataset.placeholder);
}

/// Fills the list of languages. Another one takes the page anew.
export function offerLanguages(select) {
  select.replaceChildren(...Object.entries(languages).map(([name, one]) => new Option(one.ownName, name)));
  select.value = wanted;
  select.onchange = () => {
    keep('language', select.value);
    location.reload();
  };
}
