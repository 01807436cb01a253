// The files of a message as elements: before it is sent with a button that removes each, in a turn to be read.
import {pictureBytes} from './database.js';
import {$, button, complain, make} from './dom.js';
import {thumbnail, toBase64} from './pictures.js';
import {bytes, t} from './words.js';

const thumbnails = new Map();  // promises of data URLs by the pictures' ids; undefined: the browser has the picture no more

/// Fills the list. `remove(file)` is called by a file's button, and lists what is left.
export function listFiles(list, conversation, files, remove) {
  list.replaceChildren(...files.map((file, at) => {
    const item = make('li', 'file');
    if (file.picture) item.append(pictureElement(conversation, file, words => words));
    item.append(make('bdi', '', file.name), make('span', 'words', sizeOf(file)), button('✕', 'plain small remove', () => {
      remove(file);
      const others = list.querySelectorAll('.remove');
      others[Math.min(at, others.length - 1)]?.focus();
    }, t('removeFile', {name: file.name})));
    return item;
  }));
}
function sizeOf({text, size, scaled}) {
  const words = bytes(text?.length ?? size);
  return scaled ? `${words}, ${t('scaledTo', scaled)}` : words;
}

export function fileElement(conversation, file) {
  if (file.picture) return pictureElement(conversation, file, words => {
    const line = make('div');
    line.append(make('bdi', '', file.name), ' ', words);
    return line;
  });
  const details = make('details', 'file');
  const name = make('summary');
  name.append(make('bdi', '', file.name));
  const text = make('pre', '', file.text);
  text.tabIndex = 0;
  details.append(name, text);
  return details;
}

/// A thumbnail, which shows the picture when it is pressed. Where there is none it becomes what `instead` makes of an
/// element with the reason.
function pictureElement(conversation, file, instead) {
  const element = button('', 'plain picture', () => showPicture(conversation, file), t('showPicture', {name: file.name}));
  if (!thumbnails.has(file.picture))
    thumbnails.set(file.picture, pictureBytes(conversation, file.picture).then(blob => blob && thumbnail(blob)));
  thumbnails.get(file.picture).catch(() => undefined).then(url => {
    if (url) {
      const image = make('img');
      image.alt = file.name;
      image.src = url;
      element.append(image);
    } else {
      element.replaceWith(instead(make('span', 'words', t(url === undefined ? 'pictureGone' : 'pictureUnreadable'))));
    }
  });
  return element;
}

async function showPicture(conversation, file) {
  const blob = await pictureBytes(conversation, file.picture);
  if (!blob) return complain(`${file.name}: ${t('pictureGone')}`);
  $('whole').alt = $('whole-name').textContent = file.name;
  $('whole').src = `data:${file.type};base64,${await toBase64(blob)}`;
  $('picture').showModal();
  return undefined;
}

export function setUpPictures() {
  const actual = is => {
    $('picture').classList.toggle('actual', is);
    $('actual').setAttribute('aria-pressed', is);
  };
  $('actual').onclick = () => actual(!$('picture').classList.contains('actual'));
  $('picture-close').onclick = () => $('picture').close();
  $('picture').onclick = event => { if (event.target === $('picture')) $('picture').close(); };  // beside it
  $('picture').onclose = () => {
    actual(false);
    $('whole').removeAttribute('src');
  };
}
