// Where a message is written, and the files that go with it.
import {$, button, make} from './dom.js';
import {bytes, t} from './words.js';
import {newWorker} from './worker.js';

const MOST_BYTES = 4_000_000;  // of a text: more fits into no context
const MOST_PDF_BYTES = 50_000_000, PDF_PATIENCE = 60_000;  // bytes, most of them pictures; milliseconds
/// Fingers have no Shift+Enter: there Enter breaks the line, and the button sends.
const fingers = matchMedia('(pointer: coarse)').matches;

let files = [];

function grow() {
  $('prompt').style.height = 'auto';
  $('prompt').style.height = $('prompt').scrollHeight + 2 + 'px';
}

function showFiles() {
  $('files').replaceChildren(...files.map(file => {
    const item = make('li', 'file');
    const name = make('bdi', '', file.name);
    item.append(name, make('span', 'words', bytes(file.text.length)), button('✕', 'plain small', () => {
      files = files.filter(other => other !== file);
      showFiles();
    }, t('removeFile', {name: file.name})));
    return item;
  }));
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

async function take(list) {
  for (const file of list) {
    try {
      files.push({name: file.name, text: await textOf(file)});
    } catch (error) {
      $('status').textContent = error.message;
    }
  }
  showFiles();
  $('prompt').focus();
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
    const content = $('prompt').value.trim();
    if ((!content && files.length === 0) || send({content, files}) === false) return;
    $('prompt').value = '';
    files = [];
    showFiles();
    grow();
  };
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
    if (event.clipboardData.files.length === 0) return;
    event.preventDefault();
    take([...event.clipboardData.files]);
  };
}
