// The page at "/": puts its parts together. Views, light and dark, keys.
import {isRunning, send, setUpChat, stop} from './chat.js';
import {setUpComposer} from './composer.js';
import {$, keep, kept} from './dom.js';
import {setUpPictures} from './files.js';
import {lookAtMachine} from './machine.js';
import {listModels, refreshNames, setUpModels} from './models.js';
import {setUpSettings} from './settings.js';
import {refreshSidebar, setUpSidebar} from './sidebar.js';
import {fillWords, offerLanguages} from './words.js';

const VIEWS = ['chat', 'models', 'machine'];

function show(name) {
  for (const view of VIEWS) {
    $(view).hidden = view !== name;
    $('tab-' + view).setAttribute('aria-selected', view === name);
    $('tab-' + view).tabIndex = view === name ? 0 : -1;
  }
  if (name === 'models') listModels();
  if (name === 'machine') lookAtMachine();
}
VIEWS.forEach((view, i) => {
  $('tab-' + view).onclick = () => show(view);
  $('tab-' + view).onkeydown = event => {
    const step = {ArrowRight: 1, ArrowLeft: VIEWS.length - 1}[event.key];
    if (!step) return;
    const next = VIEWS[(i + step) % VIEWS.length];
    show(next);
    $('tab-' + next).focus();
  };
});

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
}
$('theme').onclick = () => {
  const now = document.documentElement.dataset.theme ?? (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light');
  setTheme(now === 'dark' ? 'light' : 'dark');
  keep('theme', document.documentElement.dataset.theme);
};

document.addEventListener('keydown', event => {
  if ($('picture').open) return;  // the dialog has the keys
  if (event.key === 'Escape' && isRunning()) stop();
  if (event.key === '/' && !/INPUT|TEXTAREA|SELECT/.test(document.activeElement.tagName)) {
    event.preventDefault();
    show('chat');
    $('prompt').focus();
  }
});

setTheme(kept('theme'));
fillWords();
offerLanguages($('language'));
setUpSettings(refreshNames);
setUpComposer(send);
setUpPictures();
setUpModels();
setUpSidebar();
setUpChat(refreshSidebar);
refreshNames().then(({models}) => {
  if (models.length === 0 && !$('status').textContent) show('models');  // nothing to chat with yet
});
if (matchMedia('(pointer: fine)').matches) $('prompt').focus();
