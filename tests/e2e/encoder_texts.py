"""Texts in many scripts, short and long."""

TEXTS = 200

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.", "How do I reset my password?", "Café crème à emporter, s'il vous plaît !",
    "Größere Übungsstücke heißen Etüden.", "El niño comió piñas en la montaña.", "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "Zażółć gęślą jaźń.", "İstanbul'da ılık bir gün", "Съешь же ещё этих мягких французских булок.", "Щебетанье ласточек",
    "Το γρήγορο καφέ αλεπού πηδάει", "כל בני אדם נולדו בני חורין", "يولد جميع الناس أحرارا متساوين", "همه مردم آزاد به دنیا می‌آیند",
    "सभी मनुष्यों को गौरव और अधिकारों के मामले में", "সমস্ত মানুষ স্বাধীনভাবে", "மனிதப் பிறிவியினர் சகலரும்", "ప్రతిపత్తిస్వత్వముల విషయమున",
    "มนุษย์ทั้งหลายเกิดมามีอิสระ", "ມະນຸດທຸກຄົນເກີດມາ", "လူတိုင်းသည် တူညီ လွတ်လပ်သော", "មនុស្សទាំងអស់កើតមក", "人人生而自由，在尊严和权利上一律平等。",
    "すべての人間は、生まれながらにして自由であり", "모든 인간은 태어날 때부터 자유로우며", "ყველა ადამიანი იბადება", "Բոլոր մարդիկ ծնվում են ազատ",
    "ሰብዓዊ ፍጡር ሁሉ ነጻ", "Tất cả mọi người sinh ra đều được tự do", "ཐམས་ཅད་མི་རིགས", "Kõik inimesed sünnivad vabadena",
    "x = sorted(range(10), key=lambda i: -i)  # Python", "https://example.org/a?b=c&d=%20e#f", "\t tabs\nand\r\nlines \u00a0\u2009\u3000spaces ",
    "zero\u200bwidth\u00adsoft\ufeffmark \ufffd", "😀👩‍👩‍👧‍👦🏳️‍🌈 emoji", "e\u0301 combining a\u030a o\u0308 vs é å ö", "½ ² ³ № ™ ﬁ ﬀ ＡＢＣ ｱｲｳ ㎏",
    "[CLS] as text and [MASK] [UNK]", "a" * 99 + " " + "b" * 100 + " " + "c" * 101, "$100 + 20% = £96 ‘single’ “double” – — … •",
]


def texts():
    """Sentences alone, and the rest of as many as are asked for of several, up to long ones."""
    made = list(SENTENCES)
    step = 1
    while len(made) < TEXTS:
        start = len(made) % len(SENTENCES)
        count = 2 + len(made) % 9
        made.append(" ".join(SENTENCES[(start + i * step) % len(SENTENCES)] for i in range(count)))
        step = step % 7 + 1
    return made
