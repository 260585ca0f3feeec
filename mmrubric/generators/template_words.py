"""Words by which `template` reads an English prompt. What is in no list is taken as part of a noun."""

from __future__ import annotations


def word_list(text: str) -> list[str]:
    return text.split()


def word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _phrases(text: str) -> tuple[tuple[str, ...], ...]:
    """Phrases of several words, one a line, longest first."""
    rows = [tuple(line.split()) for line in text.strip().splitlines()]
    return tuple(sorted(rows, key=len, reverse=True))


DETERMINERS = word_set(
    "a an the this that these those some any each every another both all several many few various numerous "
    "his her its their my our your someone's one's"
)
NEGATIONS = word_set("no not never without neither nor isn't aren't don't doesn't won't can't cannot lacking minus")
"""Words that deny what follows."""
NUMBERS = {
    word: number
    for number, word in enumerate(
        word_list(
            "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
            "seventeen eighteen nineteen twenty"
        ),
        1,
    )
} | {"dozen": 12}
COLLECTIVES = {"pair": 2, "couple": 2, "duo": 2, "trio": 3, "dozen": 12} | dict.fromkeys(
    word_list(
        "group bunch set collection row line stack pile array series crowd herd flock cluster number variety handful "
        "assortment range heap bundle"
    )
)
"""Nouns before 'of' that count or gather what follows; None = no number."""
COLOURS = word_set(
    "red orange yellow green blue purple violet pink brown black white grey gray gold golden silver beige turquoise "
    "cyan magenta teal navy maroon crimson scarlet turquoise lavender indigo ivory cream amber bronze copper tan khaki "
    "olive lime emerald aqua azure burgundy coral peach mint mustard charcoal multicolored multicoloured colorful "
    "colourful rainbow-colored transparent"
)
SHADES = word_set("dark light bright pale deep vivid dull neon pastel vibrant royal soft")
"""Words that shade the colour right behind them."""
MATERIALS = {
    word: word
    for word in word_list(
        "glass metal plastic leather stone marble brick concrete cotton silk velvet paper cardboard ceramic porcelain "
        "denim rubber steel iron copper bronze bamboo wicker clay crystal lace fur granite aluminum wool straw"
    )
} | {"wooden": "wood", "metallic": "metal", "woolen": "wool", "golden": "gold", "knitted": "knitted fabric"}
SIZES = word_set("small big large tiny huge giant little tall short long wide narrow enormous miniature oversized")
ADJECTIVES = word_set(
    "old new young beautiful cute happy sad fluffy soft hard shiny glossy matte rustic modern ancient vintage clean "
    "dirty bare empty full open closed round square oval rectangular triangular sleek smooth rough sharp bright dark "
    "light heavy thin thick fat slim fresh ripe raw cooked hot cold warm cool dry wet quiet loud calm busy delicate "
    "vibrant rich deep pale vivid elegant simple complex plain fancy tidy neat messy lush dense sparse single lone "
    "solitary entire whole various serene tranquil cozy spacious sturdy gentle intricate ornate textured striped "
    "spotted dotted patterned checkered same other different similar distinct clear blurry rainy sunny cloudy snowy "
    "foggy stormy quaint bustling majestic gleaming glistening sparkling more most less very"
)
"""Words that describe; a phrase of these alone is no object."""
ADJECTIVE_ENDINGS = ("ous", "ful", "ive", "less", "ish", "able", "ible", "esque", "shaped", "looking", "colored")
VERBS = word_set(
    "is are was were be being been am has have had having do does did can may will would could should must might "
    "sits sit sat stands stand stood lies lie lay rests rest hangs hang runs run walks walk flies fly holds hold wears "
    "wear rides ride eats eat drinks drink plays play looks look watches watch shows show displays display features "
    "feature contains contain says say reads read grows grow jumps jump sleeps sleep carries carry makes make made "
    "gives give takes take casts cast reflects reflect surrounds surround covers cover fills fill stretches stretch "
    "faces face leans lean floats float swims swim climbs climb dances dance smiles smile stares stare points point "
    "drives drive pulls pull pushes push throws throw catches catch kicks kick appears appear seems seem remains "
    "contrasts contrast complements emanates gleams shines shine glows glow rises rise falls fall sets emerges "
    "emerge extends extend creates create adds add enhances suggests suggest hints cascades cascade bounces bounce "
    "cooks cook reading writing cuts cut opens opens sings sing speaks talks talk lead leads peeks peek mimic mimics "
    "evokes evoke provides provide begins begin cradles cling clings meet meets sways sway filters lit seen placed set "
    "worn held shown made built drawn painted known used found kept left hung heard captures capture possess possesses "
    "complement complements emphasizes emphasize offers offer highlights highlight serves serve invites invite allows "
    "allow conveys convey exudes exude blends blend matches match stems stem spans span frames frame lines dots dot "
    "adorns adorn occupies occupy supports support balances balance perches perch basks bask illuminates illuminate "
    "echoes echo boasts boast depicts depict represents represent suggests becomes become keeps keep brings bring"
)
"""Verbs whose form alone does not tell; -ing and -ed are found by their ending."""
TEXT_VERBS = word_set("saying says reading reads labeled labelled titled spelling spells written lettered")
FUNCTION = word_set(
    "of and or but nor yet so if then than as because while when where which who whom whose that what how though "
    "although not only also just too there here it he she they we you i him them us me himself itself themselves "
    "its' etc each-other one-another other's amid during despite per via nearby either perhaps thus "
    "for amidst amongst until since after before like unlike own however together away down up out forward back apart "
    "ahead upright overhead aside else once now still even"
)
"""Words that end a noun phrase and say nothing of their own."""
RELATIONS = {
    " ".join(phrase): " ".join(phrase)
    for phrase in _phrases(
        """on the left of
        on the right of
        to the left of
        to the right of
        left of
        right of
        on top of
        in front of
        at the top of
        at the bottom of
        in the middle of
        in the center of
        in the corner of
        on the side of
        by the side of
        next to
        close to
        adjacent to
        attached to
        surrounded by
        covered with
        covered in
        filled with
        made of
        above
        below
        beneath
        underneath
        under
        over
        behind
        beside
        between
        among
        against
        near
        inside
        outside
        around
        across
        along
        through
        beyond
        atop
        onto
        into
        toward
        towards
        upon
        within
        alongside
        opposite
        off
        on
        in
        at
        by
        with
        from"""
    )
} | {
    "on the left of": "left of",
    "to the left of": "left of",
    "on the right of": "right of",
    "to the right of": "right of",
}
"""Relation words as they are found, and as they are written down."""
BARE_VERBS = word_set(
    "is are was were be been being am has have had do does did can may will would could should might must"
)
"""Verbs that say nothing without what follows."""
UNSEEN_VERBS = word_set("seen heard shown made placed set used known found kept left begins begin")
"""Verbs that alone say nothing to look for."""
SPECTACLES = word_set(
    "glasses sunglasses scissors pants trousers jeans shorts binoculars headphones tweezers pliers tights"
)
"""A pair of these is one thing."""
NOUN_COLOURS = word_set("orange coral olive mint lime peach amber lavender gold silver")
"""Colours that alone name a thing."""
NOT_PAST = word_set("hundred moped tweed steed breed creed bobsled biped")
"""Nouns in -ed."""
NOT_ADVERBS = word_set("family butterfly dragonfly firefly jelly belly assembly lily early")
SINGULAR = word_set("a an another each every")
DEFINITE = word_set("the this that these those his her its their")
COMPOUNDS = frozenset(
    {("hot", "dog"), ("hot", "dogs"), ("hot", "air"), ("hot", "tub"), ("hard", "hat"), ("soft", "drink")}
)
"""Adjectives that belong to the name of a thing."""
VAGUE = word_set("at by from off across along through toward towards into onto")
"""Relations that are only stated behind the verb that they belong to, or not at all."""
PLACES = word_set("background foreground backdrop")
SCENE = word_set(
    "picture photo photograph image scene view shot illustration painting drawing side middle center centre front "
    "top bottom left right edge corner style day time way kind type sort lot bit front part position distance "
    "presence touch sense air contrast addition end start moment angle perspective quality resolution detail details "
    "lighting light glow shadow shadows atmosphere ambiance ambience mood tone tones hue hues feeling juxtaposition "
    "composition setting word words text letter letters lettering phrase caption slogan"
)
"""Nouns that name no thing to look for."""
ABSTRACT_ENDINGS = ("ness", "tude", "ism", "ility", "icity", "ance", "ence", "cation", "zation")
CONCRETE = word_set("entrance ambulance fence harness witness wilderness residence lance audience conveyance")
"""Words with such an ending that name something to see."""
MEDIA = {
    "painting": "a painting",
    "oil painting": "an oil painting",
    "watercolor": "a watercolour",
    "watercolour": "a watercolour",
    "watercolor painting": "a watercolour painting",
    "drawing": "a drawing",
    "pencil drawing": "a pencil drawing",
    "sketch": "a sketch",
    "pencil sketch": "a pencil sketch",
    "cartoon": "a cartoon",
    "illustration": "an illustration",
    "3d render": "a 3D render",
    "render": "a rendered picture",
    "poster": "a poster",
    "logo": "a logo",
    "pixel art": "pixel art",
    "digital art": "digital art",
    "sculpture": "a sculpture",
    "engraving": "an engraving",
    "collage": "a collage",
}
"""What a picture may be, when a prompt begins with it and 'of'; a photograph needs no criterion."""
PLAIN_MEDIA = word_set(
    "photo photograph picture image shot photography rendering depiction portrait view close-up closeup"
)
