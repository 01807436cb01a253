// The page's workers. Its policy lets none but these two begin.

const NAMES = ['render.js', 'pdf-text.js'];

const addressOf = name => {
  if (!NAMES.includes(name)) throw new Error('no worker of this page: ' + name);
  return 'page/' + name;
};
const policy = window.trustedTypes?.createPolicy('millrace', {createScriptURL: addressOf}) ?? {createScriptURL: addressOf};

export const newWorker = name => new Worker(policy.createScriptURL(name));
