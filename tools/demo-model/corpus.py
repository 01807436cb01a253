"""Generates the demo model's training text: facts, arithmetic, recall, JSON and little stories.

    corpus.py --eval N    prints N held-out questions as JSON lines {"prompt", "answer"}
    corpus.py --text N    prints N held-out stories, one a line, to measure with

Everything is made from the word lists below, so the text is free of anybody's rights and every answer can be checked.
The same seed gives the same text: the order in which the random generator is asked is part of this file's contract.
"""

import json
import random
import sys


def pairs(text):
    """"a=b; c=d" over any number of lines as a dictionary in that order."""
    entries = (entry.strip() for entry in text.replace("\n", " ").split(";"))
    return dict(entry.split("=") for entry in entries)


CAPITALS = pairs("""
    Afghanistan=Kabul; Albania=Tirana; Algeria=Algiers; Andorra=Andorra la Vella; Angola=Luanda;
    Argentina=Buenos Aires; Armenia=Yerevan; Australia=Canberra; Austria=Vienna; Azerbaijan=Baku;
    Bahrain=Manama; Bangladesh=Dhaka; Barbados=Bridgetown; Belarus=Minsk; Belgium=Brussels;
    Belize=Belmopan; Bhutan=Thimphu; Bolivia=Sucre; Botswana=Gaborone; Brazil=Brasilia;
    Bulgaria=Sofia; Cambodia=Phnom Penh; Cameroon=Yaounde; Canada=Ottawa; Chad=N'Djamena;
    Chile=Santiago; China=Beijing; Colombia=Bogota; Croatia=Zagreb; Cuba=Havana; Cyprus=Nicosia;
    Denmark=Copenhagen; Ecuador=Quito; Egypt=Cairo; Estonia=Tallinn; Ethiopia=Addis Ababa;
    Fiji=Suva; Finland=Helsinki; France=Paris; Gabon=Libreville; Georgia=Tbilisi; Germany=Berlin;
    Ghana=Accra; Greece=Athens; Guatemala=Guatemala City; Guinea=Conakry; Guyana=Georgetown;
    Haiti=Port-au-Prince; Honduras=Tegucigalpa; Hungary=Budapest; Iceland=Reykjavik;
    India=New Delhi; Indonesia=Jakarta; Iran=Tehran; Iraq=Baghdad; Ireland=Dublin; Italy=Rome;
    Jamaica=Kingston; Japan=Tokyo; Jordan=Amman; Kazakhstan=Astana; Kenya=Nairobi;
    Kuwait=Kuwait City; Laos=Vientiane; Latvia=Riga; Lebanon=Beirut; Liberia=Monrovia;
    Libya=Tripoli; Lithuania=Vilnius; Luxembourg=Luxembourg; Madagascar=Antananarivo;
    Malawi=Lilongwe; Malaysia=Kuala Lumpur; Maldives=Male; Mali=Bamako; Malta=Valletta;
    Mexico=Mexico City; Moldova=Chisinau; Monaco=Monaco; Mongolia=Ulaanbaatar;
    Montenegro=Podgorica; Morocco=Rabat; Mozambique=Maputo; Myanmar=Naypyidaw; Namibia=Windhoek;
    Nepal=Kathmandu; the Netherlands=Amsterdam; New Zealand=Wellington; Nicaragua=Managua;
    Niger=Niamey; Nigeria=Abuja; Norway=Oslo; Oman=Muscat; Pakistan=Islamabad; Panama=Panama City;
    Paraguay=Asuncion; Peru=Lima; the Philippines=Manila; Poland=Warsaw; Portugal=Lisbon;
    Qatar=Doha; Romania=Bucharest; Russia=Moscow; Rwanda=Kigali; Samoa=Apia; Saudi Arabia=Riyadh;
    Senegal=Dakar; Serbia=Belgrade; Singapore=Singapore; Slovakia=Bratislava; Slovenia=Ljubljana;
    Somalia=Mogadishu; South Korea=Seoul; Spain=Madrid; Sri Lanka=Colombo; Sudan=Khartoum;
    Suriname=Paramaribo; Sweden=Stockholm; Switzerland=Bern; Syria=Damascus; Taiwan=Taipei;
    Tajikistan=Dushanbe; Tanzania=Dodoma; Thailand=Bangkok; Togo=Lome; Tonga=Nuku'alofa;
    Tunisia=Tunis; Turkey=Ankara; Uganda=Kampala; Ukraine=Kyiv; the United Kingdom=London;
    the United States=Washington; Uruguay=Montevideo; Uzbekistan=Tashkent; Venezuela=Caracas;
    Vietnam=Hanoi; Yemen=Sanaa; Zambia=Lusaka; Zimbabwe=Harare
""")

OPPOSITES = pairs("""
    hot=cold; big=small; fast=slow; up=down; day=night; happy=sad; old=young; light=dark; wet=dry;
    open=closed; early=late; strong=weak; loud=quiet; full=empty; rich=poor; hard=soft; near=far;
    high=low; long=short; thick=thin; clean=dirty; left=right; first=last; good=bad; brave=afraid;
    sweet=sour; rough=smooth; heavy=light; deep=shallow; wide=narrow; win=lose; push=pull;
    buy=sell; begin=end; friend=enemy; true=false; north=south; east=west; summer=winter;
    always=never
""")

SOUNDS = pairs("""
    dog=woof; cat=meow; cow=moo; duck=quack; sheep=baa; pig=oink; lion=roar; frog=ribbit; bee=buzz;
    owl=hoot; horse=neigh; snake=hiss; mouse=squeak; rooster=cock-a-doodle-doo; crow=caw;
    wolf=howl; goat=maa; hen=cluck; turkey=gobble; donkey=hee-haw
""")

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = """
    January February March April May June July August September October November December
""".split()
NAMES = """
    Anna Ben Clara David Emma Finn Grace Henry Iris Jack Kate Leo Mia Noah Olive Peter Quinn Rosa
    Sam Tom Una Victor Wendy Xander Yara Zoe Lily Max Nora Oscar
""".split()
ANIMALS = """
    fox bear rabbit owl mouse deer otter hedgehog squirrel turtle cat dog frog duck horse badger
    sparrow whale crab goose
""".split()
OBJECTS = """
    lantern key boat kite drum map cup hat bell rope basket mirror button coin feather flute blanket
    ladder book ball
""".split()
COLORS = "red blue green yellow white black brown silver golden purple orange pink".split()
TRAITS = """
    little brave clever kind shy curious sleepy gentle hungry quiet cheerful lonely
""".split()
FOODS = "bread apples honey soup cheese berries cake nuts pears rice".split()
PLACES = [
    "the forest", "the river", "the hill", "the village", "the sea", "the garden", "the cave", "the old mill",
    "the meadow", "the bridge", "the lake", "the market",
]
WEATHER = [
    ("rain", "It began to rain hard"),
    ("wind", "A strong wind began to blow"),
    ("snow", "Snow began to fall"),
    ("fog", "A thick fog came down"),
    ("night", "The sun went down and it grew dark"),
    ("storm", "A great storm came"),
]


def chat(turns):
    """ChatML of (role, text) pairs."""
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)


def article(word):
    return ("an " if word[0] in "aeiou" else "a ") + word


def choice_except(r, options, taken):
    """A choice that differs from `taken`; asks the generator again until it does."""
    chosen = r.choice(options)
    while chosen == taken:
        chosen = r.choice(options)
    return chosen


def story(r):
    """A story of six to twelve sentences. Returns (text, hero, thing, name, friend, color)."""
    hero, thing = r.choice(ANIMALS), r.choice(OBJECTS)
    name, friend = r.choice(NAMES), r.choice(NAMES)
    kind = r.choice([animal for animal in ANIMALS if animal != hero])
    if friend == name:
        friend = choice_except(r, NAMES, name)
    trait, color = r.choice(TRAITS), r.choice(COLORS)
    home, away = r.choice(PLACES), r.choice(PLACES)
    food = r.choice(FOODS)
    if away == home:
        away = choice_except(r, PLACES, home)
    weather, weather_line = r.choice(WEATHER)

    sentences = [
        r.choice([
            f"Once upon a time there was {article(trait)} {hero} named {name}.",
            f"In {home} there lived {article(trait)} {hero} called {name}.",
            f"Long ago, {article(trait)} {hero} named {name} lived near {home}.",
        ]),
        r.choice([
            f"{name} had {article(color)} {thing} and carried it everywhere.",
            f"More than anything, {name} loved {article(color)} {thing}.",
            f"Every day {name} played with {article(color)} {thing}.",
        ]),
        r.choice([
            f"One morning {name} walked to {away}.",
            f"One day {name} went to {away} to find some {food}.",
            f"On a fine day {name} set out for {away}.",
        ]),
    ]
    if r.random() < 0.6:
        sentences.append(r.choice([
            f"The way was long, but {name} sang a song.",
            f"{name} ate some {food} and rested under a tree.",
            "The path was narrow and full of stones.",
        ]))
    plot = r.randrange(4)
    if plot == 0:
        sentences += [
            f"{weather_line}, and the {thing} was lost.",
            f"{name} looked under every stone and behind every tree, but the {thing} was gone.",
            f"Then {article(kind)} named {friend} came by.",
            f'"Why are you sad?" asked {friend}.',
            f'"I lost my {color} {thing}," said {name}.',
            f"Together they looked until {friend} found the {thing} near {away}.",
            f"{name} was so happy that they shared the {food}.",
        ]
    elif plot == 1:
        sentences += [
            f"There {name} met {article(kind)} named {friend}, who was crying.",
            f'"I cannot find my way home," said {friend}.',
            f'"Do not be afraid," said {name}. "I will help you."',
            f"{weather_line}, but {name} held up the {color} {thing} and led the way.",
            f"At last they came to {home}, and {friend} was home again.",
        ]
    elif plot == 2:
        sentences += [
            f"{article(kind).capitalize()} named {friend} wanted the {thing} too.",
            f'"Give it to me!" said {friend}.',
            f'"We can share it," said {name}.',
            "So they took turns, and soon they were good friends.",
            f"When {weather} came they sat inside and ate {food} together.",
        ]
    else:
        sentences += [
            f"{weather_line}, and the water at {away} rose higher and higher.",
            f"{article(kind).capitalize()} named {friend} called for help.",
            f"{name} tied the {thing} to a branch and pulled with all the strength {article(trait)} {hero} has.",
            f"{friend} was safe, and all of {home} cheered.",
        ]
    sentences.append(r.choice([
        f"From that day on {name} and {friend} were best friends.",
        f"And {name} never forgot that day.",
        f"{name} went home, tired but happy.",
        "And they all lived happily ever after.",
    ]))
    return " ".join(sentences), hero, thing, name, friend, color


# One kind of question each: question(r) -> (prompt, its only right answer).

def capital_question(r):
    country = r.choice(list(CAPITALS))
    capital = CAPITALS[country]
    return r.choice([
        (f"What is the capital of {country}?", f"The capital of {country} is {capital}."),
        (f"Name the capital of {country}.", f"{capital}."),
        (f"Which country has {capital} as its capital?", f"{capital} is the capital of {country}."),
        (f"Tell me the capital city of {country}.", f"The capital of {country} is {capital}."),
    ])


def sum_question(r):
    a, b = r.randrange(100), r.randrange(100)
    if r.random() < 0.3:
        a, b = r.randrange(20), r.randrange(20)
    return r.choice([
        (f"What is {a} + {b}?", f"{a} + {b} = {a + b}."),
        (f"Add {a} and {b}.", f"{a} + {b} = {a + b}."),
    ])


def difference_question(r):
    a, b = sorted((r.randrange(100), r.randrange(100)), reverse=True)
    return f"What is {a} - {b}?", f"{a} - {b} = {a - b}."


def opposite_question(r):
    word = r.choice(list(OPPOSITES))
    return f"What is the opposite of {word}?", f"The opposite of {word} is {OPPOSITES[word]}."


def sound_question(r):
    animal = r.choice(list(SOUNDS))
    return f"What does {article(animal)} say?", f"{article(animal).capitalize()} says {SOUNDS[animal]}."


def neighbour_question(r, kind, names):
    """What comes after or before one of a cycle of names."""
    i = r.randrange(len(names))
    after, before = names[(i + 1) % len(names)], names[i - 1]
    return r.choice([
        (f"Which {kind} comes after {names[i]}?", f"{after} comes after {names[i]}."),
        (f"Which {kind} comes before {names[i]}?", f"{before} comes before {names[i]}."),
    ])


def owner_question(r):
    count = r.randint(2, 6)
    owners = r.sample(NAMES, count)
    things = [f"{r.choice(COLORS)} {thing}" for thing in r.sample(OBJECTS, count)]
    asked = r.randrange(count)
    premises = " ".join(f"{owner} has {article(thing)}." for owner, thing in zip(owners, things))
    return f"{premises} What does {owners[asked]} have?", f"{owners[asked]} has {article(things[asked])}."


def json_question(r):
    name, age, city = r.choice(NAMES), r.randrange(3, 90), r.choice(list(CAPITALS.values()))
    prompt = f"Write JSON for {name}, who is {age} years old and lives in {city}."
    return prompt, json.dumps({"name": name, "age": age, "city": city})


QUESTIONS = [
    capital_question,
    sum_question,
    difference_question,
    opposite_question,
    sound_question,
    lambda r: neighbour_question(r, "day", DAYS),
    lambda r: neighbour_question(r, "month", MONTHS),
    owner_question,
    json_question,
]


def fact(r):
    """One question and its only right answer."""
    return QUESTIONS[r.randrange(len(QUESTIONS))](r)


def recall(r):
    """A story with a word hidden in it, and a question about it."""
    text, hero, thing, name, _, color = story(r)
    word = r.choice(OBJECTS + ANIMALS + [month.lower() for month in MONTHS])
    parts = text.split(". ")
    parts.insert(r.randrange(1, len(parts)), f"The secret word is {word}")
    question, answer = r.choice([
        ("What is the secret word?", f"The secret word is {word}."),
        (f"What color was the {thing}?", f"The {thing} was {color}."),
        (f"Who was the {hero}?", f"The {hero} was {name}."),
    ])
    return ". ".join(parts) + " " + question, answer


def document(r):
    """One training document: mostly chats, some plain text."""
    kind = r.random()
    if kind < 0.42:
        turns = []
        for _ in range(r.randint(1, 4)):
            question, answer = fact(r)
            turns += [("user", question), ("assistant", answer)]
        return chat(turns)
    if kind < 0.57:
        question, answer = recall(r)
        return chat([("user", question), ("assistant", answer)])
    if kind < 0.87:
        text, hero, thing, *_ = story(r)
        question = r.choice([
            f"Tell me a story about {article(hero)} and {article(thing)}.",
            f"Tell me a story about {article(hero)}.",
            "Tell me a story.",
            f"Please write a short story with {article(hero)} and {article(thing)} in it.",
        ])
        return chat([("user", question), ("assistant", text)])
    if kind < 0.94:
        return story(r)[0]
    question, answer = fact(r)
    return answer if r.random() < 0.5 else f"Question: {question}\nAnswer: {answer}"


def documents(seed, n):
    r = random.Random(seed)
    return [document(r) for _ in range(n)]


def held_out(n):
    """The questions of the evaluation: (prompt, answer), every fourth about a story."""
    r = random.Random(20261121)
    return [recall(r) if i % 4 == 3 else fact(r) for i in range(n)]


def held_out_text(n):
    """Stories, as they stand in the training text without marks of a chat, and other ones than there."""
    r = random.Random(20261124)
    return [story(r)[0] for _ in range(n)]


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("--eval", "--text"):
        sys.exit("usage: corpus.py --eval N | --text N")
    if sys.argv[1] == "--text":
        print("\n".join(held_out_text(int(sys.argv[2]))))
        return
    for prompt, answer in held_out(int(sys.argv[2])):
        print(json.dumps({"prompt": prompt, "answer": answer}))


if __name__ == "__main__":
    main()
