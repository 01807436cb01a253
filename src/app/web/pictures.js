// Pictures as bytes: which files are pictures, what the server takes of them, and how they become smaller, base64 and
// thumbnails. No elements of the page, no storage.
import {bytes, number, t} from './words.js';

/// What the server takes at most (tests/e2e/test_page.py compares): bytes of a file, pixels of a picture and of a side, and
/// bytes of memory for requests, of which each byte of a body takes `copies`. With a small --ram it is less: then the server
/// refuses, in its own words.
export const limits = {bytes: 20 * 2 ** 20, pixels: 64_000_000, side: 65_535, memory: 256_000_000, copies: 6};
const A_PIXEL = 6;                       // bytes of memory: it is decoded, and turned where its EXIF orientation asks for that
const FOR_OTHERS = 16_000_000 * A_PIXEL;  // memory that a conversation's pictures leave for text and for one that is decoded
const SCALED_PIXELS = [16_000_000, 4_000_000, 1_000_000];  // the first: what each browser's canvas holds
const SCALED_QUALITY = 0.92;
const THUMBNAIL = {width: 480, height: 160};  // pixels at most

const SIGNATURES = [['image/png', /^\x89PNG\r\n\x1a\n/], ['image/jpeg', /^\xff\xd8\xff/], ['image/webp', /^RIFF[^]{4}WEBP/]];
const TYPES = SIGNATURES.map(([type]) => type);

/// By its type or its name. An SVG is text.
export const isPicture = file => /^image\/(?!svg)/.test(file.type) || /\.(png|jpe?g|webp)$/i.test(file.name);

/// One of TYPES by the first bytes; undefined where they are of no such file.
const typeOf = head => SIGNATURES.find(([, signature]) => signature.test(String.fromCharCode(...head)))?.[0];

const charactersOf = size => 4 * Math.ceil(size / 3);  // in base64

/// Memory that the pictures of a conversation may take beside `sizes`, the bytes of those it has.
export const roomBeside = sizes => sizes.reduce((room, size) => room - limits.copies * charactersOf(size), limits.memory - FOR_OTHERS);

/// The picture of a file as it is sent: {type, blob}, and {width, height} if it had to be scaled down. A damaged one is
/// sent as it is: the server's error names the fault. `room`: memory it may take. Throws in the reader's words.
export async function readPicture(file, room) {
  const {name} = file, type = typeOf(new Uint8Array(await file.slice(0, 12).arrayBuffer())) ?? TYPES.find(one => one === file.type);
  if (!type) throw new Error(t('pictureKind', {name}));
  const bitmap = await createImageBitmap(file).catch(() => null);
  try {
    if (isTaken(file, bitmap ?? {width: 0, height: 0}) && hasRoom(file, room)) return {type, blob: file};
    let smaller = null;
    for (const pixels of bitmap ? SCALED_PIXELS : []) {
      smaller = await scaledDown(bitmap, pixels);
      if (smaller && isTaken(smaller.blob, smaller) && hasRoom(smaller.blob, room)) return smaller;
    }
    const least = smaller?.blob ?? file;
    if (!hasRoom(least, room) && hasRoom(least, roomBeside([]))) throw new Error(t('picturesTooMany', {name}));
    throw new Error(t('pictureTooLarge', {name, most: bytes(limits.bytes), pixels: number(limits.pixels / 1e6)}));
  } finally {
    bitmap?.close();
  }
}
function isTaken({size}, {width, height}) {
  const memory = limits.copies * charactersOf(size) + A_PIXEL * width * height;
  return charactersOf(size) / 4 * 3 <= limits.bytes && width * height <= limits.pixels && Math.max(width, height) <= limits.side && memory <= limits.memory;
}
const hasRoom = ({size}, room) => limits.copies * charactersOf(size) <= room;

/// A canvas with the picture, its sides multiplied by `scale`; null where the browser has no memory for it.
function draw(bitmap, scale, background) {
  const canvas = document.createElement('canvas'), context = canvas.getContext('2d');
  canvas.width = Math.max(1, Math.floor(bitmap.width * scale));
  canvas.height = Math.max(1, Math.floor(bitmap.height * scale));
  if (!context) return null;
  context.imageSmoothingQuality = 'high';
  if (background) {
    context.fillStyle = background;
    context.fillRect(0, 0, canvas.width, canvas.height);
  }
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas;
}

/// As a JPEG, on white, on which the server sees transparent parts, too.
async function scaledDown(bitmap, pixels) {
  const most = Math.min(pixels, limits.pixels), {width, height} = bitmap;
  const scale = Math.min(1, Math.sqrt(most / (width * height)), limits.side / width, limits.side / height);
  const canvas = draw(bitmap, scale, '#fff'), type = 'image/jpeg';
  const blob = await new Promise(resolve => canvas ? canvas.toBlob(resolve, type, SCALED_QUALITY) : resolve(null));
  return blob && {type, blob, width: canvas.width, height: canvas.height};
}

/// A small copy as a data URL; empty where the browser cannot decode the picture.
export async function thumbnail(blob) {
  const bitmap = await createImageBitmap(blob).catch(() => null);
  if (!bitmap) return '';
  const canvas = draw(bitmap, Math.min(1, THUMBNAIL.width / bitmap.width, THUMBNAIL.height / bitmap.height));
  bitmap.close();
  return canvas?.toDataURL('image/webp', 0.85) ?? '';
}

export const toBase64 = blob => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(',') + 1));
  reader.onerror = () => reject(reader.error);
  reader.readAsDataURL(blob);
});

/// The picture of a text that anybody may have written; null where it is none that the server takes.
export function fromBase64(text) {
  try {
    const data = Uint8Array.from(atob(text), c => c.charCodeAt(0)), type = typeOf(data.subarray(0, 12));
    return type && charactersOf(data.length) / 4 * 3 <= limits.bytes ? new Blob([data], {type}) : null;
  } catch {
    return null;
  }
}
