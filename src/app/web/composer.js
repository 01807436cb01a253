// Where a message is written, and the files that go with it.
import {current} from './chat.js';
import {branch, fresh, picturesOf} from './conversations.js';
import {dropPicture, holdPicture} from './database.js';
import {$, complain, make} from './dom.js';
import {listFiles} from './files.js';
import {readsPictures, shortName} from './models.js';
import {isPicture, readPicture, roomBeside} from './pictures.js';
import {bytes, t} from './words.js';
import {newWorker} from './worker.js';

const MOST_BYTES = 4_000_000;  // of a text: more fits into no context
const MOST_PDF_BYTES = 50_000_000, PDF_PATIENCE = 60_000;  // bytes, most of them pictures; milliseconds
/// Fingers have no Shift+Enter: there Enter breaks the line, and the button sends.
const fingers = matchMedia('(pointer: coarse)').matches;

let files = [], coming = 0;
let taking = Promise.resolve(), sending = false;  // until the files that were given are read; a message waits for them

function grow() {
  $('prompt').style.height = 'auto';
  $('prompt').style.height = $('prompt').scrollHeight + 2 + 'px';
}

function showFiles() {
  listFiles($('files'), current(), files, file => {
    files = files.filter(other => other !== file);
    if (file.picture) dropPicture(file.picture);
    showFiles();
    if (files.length === 0) $('prompt').focus();
  });
  if (coming > 0) $('files').append(make('li', 'words', t('readingFiles')));
}

/// The text of a file. Throws, in the reader's words, what is none.
async function textOf(file) {
  const isPdf = file.type === 'application/pdf' || /\.pdf$/i.test(file.name), most = isPdf ? MOST_PDF_BYTES : MOST_BYTES;
  if (file.size > most) throw new Error(t('fileTooLarge', {name: file.name, most: bytes(most)}));
  const data = await file.arrayBuffer();
  if (isPdf) return pdfText(data, file.name);
  try {
    const text = new TextDecoder('utf-8', {fatal: true}).decode(data);
    if (!text.includes('\0')) return text;
  } catch { /* no UTF-8 */ }
  throw new Error(t('fileNoText', {name: file.name}));
}
function pdfText(data, name) {
  const worker = newWorker('pdf-text.js');
  return new Promise((resolve, reject) => {
    const fail = () => reject(new Error(t('fileNoText', {name})));
    setTimeout(fail, PDF_PATIENCE);
    worker.onerror = fail;
    worker.onmessage = ({data: {text, failed}}) => {
      if (text) resolve(text);
      else if (text === '' || failed) fail();
    };
    worker.postMessage(data, [data]);
  }).finally(() => worker.terminate());
}

/// A picture as one of a message's files. Throws, in the reader's words, what the server would not take.
async function pictureOf(file) {
  const turns = branch(current()).map(place => current().turns[place]);
  const others = [...picturesOf(turns), ...files.filter(one => one.picture)];
  const {blob, type, ...size} = await readPicture(file, roomBeside(others.map(one => one.size)));
  const picture = fresh();
  holdPicture(picture, blob);
  return {name: file.name, type, size: blob.size, picture, ...(size.width ? {scaled: size} : {})};
}

async function takeAll(list) {
  const problems = new Set();
  const unseen = list.some(isPicture) && !await readsPictures();
  if (unseen) problems.add(cannotSee());
  for (const file of list) {
    try {
      if (!isPicture(file)) files.push({name: file.name, text: await textOf(file)});
      else if (!unseen) files.push(await pictureOf(file));
    } catch (error) {
      problems.add(error.message);
    }
  }
  complain(...problems);
}
function take(list) {
  if (coming++ === 0) showFiles();
  taking = taking.then(() => takeAll(list)).catch(error => complain(error.message)).finally(() => {
    --coming;
    showFiles();
    $('prompt').focus();
  });
}

const cannotSee = () => t('cannotSee', {model: shortName($('model').value)});
/// True, with a complaint, where the message has pictures and the chosen model reads none.
async function isUnseen() {
  const unseen = files.some(file => file.picture) && !await readsPictures();
  complain(...(unseen ? [cannotSee()] : []));
  return unseen;
}

/// Gives the message to `send`; it stays where it is if that returns false.
async function submit(send) {
  await taking;
  if (await isUnseen()) return;
  const content = $('prompt').value.trim();
  if ((!content && files.length === 0) || send({content, files}) === false) return;
  $('prompt').value = '';
  files = [];
  showFiles();
  grow();
}

/// `send`: called with {content, files} of a message; false leaves it where it is.
export function setUpComposer(send) {
  $('prompt').placeholder = t(fingers ? 'writeFingers' : 'write');
  $('prompt').enterKeyHint = fingers ? 'enter' : 'send';
  $('prompt').oninput = grow;
  $('prompt').onkeydown = event => {
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
    if (fingers && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    $('ask').requestSubmit();
  };
  $('ask').onsubmit = event => {
    event.preventDefault();
    if (sending) return;
    sending = true;
    submit(send).finally(() => { sending = false; });
  };
  $('model').addEventListener('change', () => { if (files.some(file => file.picture)) isUnseen(); });
  $('attach').onclick = () => $('attach-file').click();
  $('attach-file').onchange = () => {
    take([...$('attach-file').files]);
    $('attach-file').value = '';
  };
  $('talk').ondragover = event => { if (event.dataTransfer.types.includes('Files')) event.preventDefault(); };
  $('talk').ondrop = event => {
    if (event.dataTransfer.files.length === 0) return;
    event.preventDefault();
    take([...event.dataTransfer.files]);
  };
  $('prompt').onpaste = event => {
    const {files: given, types} = event.clipboardData;
    // Office programs put a picture of a text beside it.
    if (given.length === 0 || (types.includes('text/plain') && types.includes('text/html'))) return;
    event.preventDefault();
    take([...given]);
  };
}
