// Texts for comparing tokenizers: at least `size` bytes of scripts, emoji, controls, numbers, code and look-alikes of
// special tokens, short texts and long ones, the same in every run.
const scripts = [
  "The quick miller's wheel doesn't stop: it'll grind 12 sacks, they've said; I'M SURE we'D hear it. iPhone, McGregor, HTTPServer2, naïve café — “quotes”.",
  "Die Mühle am rauschenden Bach dreht sich größer und schöner, straße für Straße; ÄRGER mit Übermut kostet 3,50 € je Stück.",
  "Cối xay nước bên bờ suối quay suốt ngày đêm, người dân mang lúa đến từ những làng xa xôi. İstanbul'da değirmen ılık ışıkta.",
  "Мельница у реки мелет зерно днём и ночью; мельник считает мешки: раз, два, три. Її колесо крутиться швидко, ЩОДНЯ.",
  "Ο νερόμυλος δίπλα στο ποτάμι αλέθει σιτάρι όλη μέρα και ο μυλωνάς μετράει τα σακιά. ΚΑΛΗΜΈΡΑ Ἀθῆναι.",
  "تدور الطاحونة قرب النهر ليلًا ونهارًا، ويحسب الطحّان الأكياس واحدًا بعد آخر ١٢٣٤٥.",
  "הטחנה ליד הנהר טוחנת יומם ולילה, והטוחן סופר את השקים בְּרֵאשִׁית ועד הסוף.",
  "नदी के किनारे की चक्की दिन-रात चलती है और चक्कीवाला बोरियाँ गिनता है १२३४। क़लम और ज़मीन।",
  "নদীর ধারের কলটি দিনরাত চলে, কলওয়ালা বস্তা গোনে ১২৩।",
  "โรงสีริมแม่น้ำหมุนทั้งวันทั้งคืน และคนโม่ข้าวนับกระสอบทีละใบ ๑๒๓",
  "河边的水磨日夜不停地转动，磨坊主一袋一袋地数着：一、二、三！我想在apple工作1314151天～ 龘𠀀㐀。",
  "川のほとりの水車は昼も夜も回り、粉屋は袋を数える。カタカナとひらがな、ｶﾀｶﾅ、１２３！ーー々〆",
  "강가의 물레방아는 밤낮으로 돌고, 방앗간 주인은 자루를 하나씩 센다. ㄱㄴㄷ ㅏㅑ",
  "წისქვილი მდინარესთან დღე და ღამე ბრუნავს. Ջրաղացը գետի մոտ պտտվում է օր ու գիշեր։ ወፍጮው ሌት ተቀን ይሽከረከራል።",
  "ម៉ាស៊ីនកិនស្រូវក្បែរទន្លេវិលទាំងយប់ទាំងថ្ងៃ។ ဆန်စက်သည် မြစ်နားတွင် လည်ပတ်သည်။",
];
const oddities = [
  "👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇯🇵 😶‍🌫️ ✅ ❤️ 🦙🦙🦙 ♾ ☃︎",
  "\u0000\u0001\u0007\b\u000b\f\u001b[31m\u007f\u0080\u009f\u00ad\u200b\u200d\u200e\u2060\ufffd\ue000",
  "e\u0301\u0302 n\u0303 \u1112\u1161\u11ab \u0915\u093c \u0958 \u212b \u2126 \ufb01 \u0344 a\u0323\u0307 \ud834\udd5e \u2f800".replace("\u2f800", "\u{2f800}"),
  "3 33 333 3333 33333 333333 3333333 33333333 3.14159 1,000,000 0x1F 1e-9 ½ ² ⅷ ٣٣٣٣ ４４４４ 2024-02-29T12:34:56Z",
  "\n \n\n \n\n\n \t \t\t \t\n  \n   \n    \n     \n\r\n\r\n\r \u00a0\u2003\u3000 \u2028\u2029",
  "'s 'S 'T 'Re 'VE 'll 'Ll ''re I'm we'd'd 'x don'tknow DON'T ’s rock'n'roll",
  "------======= ```````\"\"\"\"......!!!!!!?????? (normal) [x](y) {{z}} <<<>>> //// \\\\ ~/.config/*.{js,ts} $HOME #!/bin/sh\n",
  "ABCdef ABCDef aBcD ÀÉîõ ǅ ʰʰ ªº 中A文b ㋿ ₿ a\u0301B\u0301C ab\u0301CD XMLHttpRequest2Foo_bar__baz",
];
const code = [
  "def f(x, *args, **kw):\n    '''Docs.'''\n    if x is None:\n        return [i ** 2 for i in range(10) if i % 3]\n\treturn {'a': 1, \"b\": f'{x:>8.3f}'}\n\n",
  "#include <vector>\ntemplate <typename T> auto&& g(std::vector<T>&& v) noexcept { return v[0] <=> v[1] ? *v.begin()++ : ~0u; }\n",
  "<div class=\"a b\"><s>old</s><b>x &amp; y</b></td></tr></table>\n<!-- c --><img src='q.png'/>\n",
  "SELECT `id`, COUNT(*) FROM t WHERE a<>'b''c' AND x IS NOT NULL;\n{\"k\": [1, 2.5e3, null, true], \"ü\": \"\\u00fc\\n\"}\n",
  "for (let i=0;i<n;i++){\n\t\t\tconsole.log(`${i}: ${a[i]}`);\n\t\t}\n\n\n\n    // done\n        \t  x\n",
];
// U+2581 stands beside no other and no space: for SentencePiece it is a space there, for @huggingface/tokenizers not.
const lookalikes = [
  "<|im_start|>user\nhi<|im_end|>\n", "<|im_start", "<|endoftext|>", "<|endoftext|", "<think>", "</think>\n\n", "<tool_call>{}</tool_call>",
  "<start_of_turn>model\n", "<end_of_turn>", "<bos>", "<eos>", "<unused7>", "<unused70>", "<mask>", "<0x41>", "<unk>", "[multimodal]",
  "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>", "<|reserved_special_token_12|>",
  "<|start|>assistant<|channel|>final<|message|>", "<|return|>", "<|call|>", "<|end|>", "<|constrain|>json",
  "<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<|EOT|>",
  "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[gMASK]<sop>", "a\u2581b", "<s", "< s >", "|>", "<|<|im_end|>|>",
];

/** Mulberry32: numbers in [0, 1), the same everywhere. */
function generator(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), seed | 1);
    t = (t + Math.imul(t ^ (t >>> 7), t | 61)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

export function tokenizerTexts(size) {
  const random = generator(20260222);
  const pick = (list) => list[Math.floor(random() * list.length)];
  const everything = [...scripts, ...oddities, ...code, ...lookalikes];
  const words = [...scripts, ...oddities, ...code].flatMap((text) => text.split(/(?<=\s)/u)).filter(Boolean);
  const characters = [...new Set([...scripts, ...oddities, ...code].join(""))];
  const make = [
    () => pick(scripts),
    () => pick(oddities),
    () => pick(code) + pick(code),
    () => pick(lookalikes) + pick(words) + pick(lookalikes),
    () => Array.from({ length: 40 }, () => (random() < 0.1 ? pick(lookalikes) : pick(words))).join(""),
    () => Array.from({ length: 30 }, () => pick(characters)).join(""),
    () => pick(characters).repeat(1 + Math.floor(random() * 70)) + pick(words),
    () => " ".repeat(Math.floor(random() * 40)) + "\n".repeat(Math.floor(random() * 40)) + "\t".repeat(Math.floor(random() * 9)) + pick(words),
    () => String(Math.floor(random() * 10 ** (1 + Math.floor(random() * 15)))) + pick([" ", ",", ".", "%", "a", "\n"]),
  ];
  const texts = ["", " ", ...everything];
  let bytes = 0;
  for (const text of texts) bytes += Buffer.byteLength(text);
  // Texts of some lines and, every so often, one of some pages.
  for (let count = 1; bytes < size; ++count) {
    const parts = count % 150 === 0 ? 150 : 1 + Math.floor(random() * 3);
    const text = Array.from({ length: parts }, () => pick(make)()).join(pick(["", " ", "\n", "\n\n"]));
    texts.push(text);
    bytes += Buffer.byteLength(text);
  }
  return texts.map((text) => text.toWellFormed?.() ?? text);
}
