"""Word lists: what a modifier is, and which nouns are no objects of a scene."""

from __future__ import annotations


def _table(text: str) -> dict[str, str]:
    """'gray grey; gold golden' -> each word with the first of its group."""
    groups = [g.split() for g in text.replace("\n", " ").split(";")]
    return {w: g[0] for g in groups if g for w in g}


COLOURS = _table("""red; orange; yellow; green; cyan; blue; purple; pink; black; white; gray grey; brown; beige;
gold golden; silver silvery; crimson; scarlet; maroon; navy; teal; turquoise; aqua; violet; magenta; indigo;
lavender; lilac; olive; tan; cream; ivory; amber; emerald; mauve; burgundy; khaki; azure; blonde blond; ginger;
reddish; bluish; greenish; yellowish; pinkish; brownish; colorful colourful multicolored multicoloured multi-colored
rainbow-colored; pastel""")
# These are things too, and only a colour in front of a noun or after "in".
COLOUR_OR_THING = frozenset("""orange gold silver violet lavender lilac olive cream ivory amber emerald ginger
pastel""".split())

SIZES = _table("""big large; huge enormous immense; giant gigantic; massive; small little; tiny; miniature mini;
tall; short; long; wide broad; narrow; thick; thin slender; vast; towering; oversized""")

MATERIALS = _table("""wood wooden; metal metallic; glass; stone; brick; concrete; leather; plastic; paper;
cardboard; porcelain; ceramic; marble; silk silken; cotton; wool woolen woollen; velvet; denim; steel; iron; bronze;
copper; brass; bamboo; oak oaken; mahogany; pine; clay; rubber; straw; lace; linen; fur; crystal; sandstone;
granite; chrome; cobblestone; tin; foil; felt; canvas; wicker""")

NUMBERS = _table("""2 two both pair couple; 3 three trio; 4 four; 5 five; 6 six; 7 seven; 8 eight; 9 nine; 10 ten;
11 eleven; 12 twelve dozen; 20 twenty; 100 hundred; several many multiple numerous few some various countless
hundreds thousands dozens assorted""")
# "a group of people": the entity is what follows "of".
GROUPS = frozenset("""group groups pair pairs couple bunch herd flock crowd crowds row rows variety dozen dozens
number lot lots hundreds thousands array collection series pack swarm school set stack pile piles cluster clusters
plenty handful team trio kind kinds type types sort sorts piece pieces bit slice slices array assortment wisps wisp
touch hint heart corner expanse burst""".split())

DIRECTIONS = _table("""left leftward leftwards; right rightward rightwards; up upward upwards skyward; down downward
downwards; forward forwards ahead; backward backwards; away; clockwise; counterclockwise anticlockwise
counter-clockwise""")
# After other verbs "up" and "down" are part of the verb ("wake up", "slow down").
MOTION = frozenset("""move go come fly run walk swim drive roll float drift slide climb jump fall sail ride travel
glide soar rise crawl march step ski skate race speed hop leap look gaze face point turn tilt head flow pour drop
bounce swing spin rotate sink dive descend ascend stream scroll pan lean hang reach push pull throw lift swipe sweep
shoot launch skip stroll jog dash gallop trot slither wander rush swoop cruise surf stare""".split())
TOWARD = _table("""toward towards to onto; into; from; away_from; out_of""")

# Longest first; (words, canonical relation).
RELATIONS: tuple[tuple[tuple[str, ...], str], ...] = tuple(sorted(
    ((tuple(k.split()), v) for k, v in {
        "on the left of": "left of", "on the left side of": "left of", "to the left of": "left of",
        "at the left of": "left of", "left of": "left of", "on the right of": "right of",
        "on the right side of": "right of", "to the right of": "right of", "at the right of": "right of",
        "right of": "right of", "on the top of": "above", "on top of": "on top of", "at the top of": "at the top of",
        "on the bottom of": "below", "at the bottom of": "at the bottom of", "in front of": "in front of",
        "in the front of": "in front of", "to the front of": "in front of", "in the back of": "behind",
        "to the back of": "behind", "at the back of": "behind", "in the middle of": "in the middle of",
        "in the center of": "in the middle of", "in the centre of": "in the middle of",
        "at the center of": "in the middle of", "next to": "beside", "close to": "near", "adjacent to": "beside",
        "inside of": "in", "outside of": "outside", "along with": "with", "on the edge of": "at the edge of",
        "at the edge of": "at the edge of", "on the side of": "beside", "by the side of": "beside",
        "at the foot of": "at the bottom of", "on board": "on", "away from": "away from", "out of": "out of",
        "on": "on", "in": "in", "at": "at", "under": "under", "underneath": "under", "below": "below",
        "beneath": "under", "above": "above", "over": "over", "behind": "behind", "beside": "beside", "near": "near",
        "nearby": "near", "by": "by", "between": "between", "inside": "in", "outside": "outside",
        "through": "through", "across": "across", "along": "along", "around": "around", "against": "against",
        "among": "among", "amongst": "among", "amid": "among", "amidst": "among", "atop": "on top of", "off": "off",
        "upon": "on", "beyond": "beyond", "within": "in", "past": "past", "alongside": "beside", "opposite": "opposite",
        "toward": "toward", "towards": "toward", "to": "toward", "into": "into", "onto": "onto", "from": "from",
    }.items()), key=lambda item: -len(item[0])))
# Relations that say which way something goes rather than where it is.
GOING = frozenset(("toward", "into", "onto", "from", "away from", "out of"))
# (relation, the same seen from the other object)
LAYOUT = {"left of": "right of", "right of": "left of", "above": "below", "below": "above",
          "in front of": "behind", "behind": "in front of"}

NEGATIONS = frozenset(("no", "not", "n't", "without", "never", "neither", "nor", "zero"))

# Nouns in -ing that are things; every other one is an activity.
ING_THINGS = frozenset("""building ring king ceiling clothing string wing swing earring lightning pudding morning
evening wedding spring thing sling railing frosting icing stocking awning clearing viking duckling sibling herring
starling ping pudding sapling seedling earthling underling bowling ceiling offspring drawstring hamstring mooring
flooring bedding piercing dressing topping stuffing dumpling gosling hatchling inkling sling bling carving painting
drawing gathering""".split())

# Lemmas that the rules get wrong: plural in form only, singular in s, or irregular.
LEMMAS = _table("""leaf leaves; wales; cookie cookies; wolf wolves; knife knives; loaf loaves; hoof hooves; scarf
scarves; shelf shelves; calf calves; half halves; elf elves; thief thieves; wife wives; hero heroes; potato
potatoes; tomato tomatoes; axe axes; clothes; scissors scissor; glasses; sunglasses sunglass; eyeglasses; goggles;
pants; trousers; jeans; shorts; binoculars; headphones; earphones; pajamas pyjamas; tongs; skis ski; stairs; paris;
mars; venus; athens; alps; himalayas; andes; people; dunes dune; tweezers; leggings; tights; overalls; waffles
waffle; groceries grocery; series; species; chess; grass; glass; hydrangeas; octopus; cactus cacti; hephaestus;
christmas; gymnastics; tennis; canvas; atlas; walrus; platypus; bus buses; lens lenses; iris; oasis oases; lotus;
venice; aurora; surroundings; greens; outskirts; remains; fireworks; moss; dress dresses; cross crosses; compass;
mattress; princess; boss; bass""")
# Number words and plural marks mean nothing on these.
NO_COUNT = frozenset("""clothes scissors glasses sunglasses eyeglasses goggles pants trousers jeans shorts
binoculars headphones earphones pajamas tongs stairs paris mars venus athens alps himalayas andes tweezers leggings
tights overalls skis series species chess grass surroundings outskirts remains christmas gymnastics tennis""".split())
# Compounds that are no kind of their head.
FIXED_COMPOUNDS = frozenset((
    "hot dog", "teddy bear", "ice cream", "guinea pig", "sea lion", "prairie dog", "gummy bear", "sea horse",
    "rock star", "star fish", "jelly fish", "koala bear"))

CAMERA = frozenset("""camera shot shots close-up closeup close-ups closeups up angle angles view views viewpoint
perspective pov footage zoom zooms pan pans tilt tilts dolly truck tracking framing focus rack racking lens bokeh
frame frames fps timelapse time-lapse lapse motion slow-motion hyperlapse drone aerial handheld steadicam gimbal
overhead panorama panoramic wide-angle low-angle high-angle eye-level fisheye macro depth field orbit crane
establishing cutaway viewer over-the-shoulder first-person third-person wide-shot bird's-eye shaking effect steady
smooth static""".split())
QUALITY = frozenset("""4k 8k 2k 16k hd uhd fhd 1080p 720p 1080 4k+ hdr dslr raw masterpiece quality resolution
ultra-hd ultra-high-definition definition highly detailed detail details intricate photorealistic photo-realistic
realistic hyperrealistic hyper-realistic ultra-realistic ultrarealistic realism ultra hyper high-resolution
high-quality high-definition high-detail best sharp crisp trending artstation award-winning award professional
professionally cinematic octane unreal engine render rendering rendered beautifully absurdres highres hi-res
high-res 35mm 50mm 85mm film grain stunning extremely super very high fine finely 60fps 30fps 24fps""".split())
LOOK = frozenset("""style styles styled art artwork painting paintings illustration drawing sketch cartoon anime
animation animated cgi cg 3d 2d comic manga watercolor watercolour oil pixel digital photograph photography photo
image picture lighting lit light lights shadows shadow tones tone color colors colour colours palette monochrome
sepia grayscale greyscale vintage retro noir cyberpunk steampunk surrealism surreal impressionism ukiyo pixar disney
ghibli lowpoly low-poly vaporwave minimalist minimalism abstract documentary mood moody atmosphere ambience ambiance
aesthetic aesthetics soft warm cool dramatic natural volumetric rim backlit backlighting contrast vibrant vivid
saturated muted dreamy ethereal composition symmetrical texture textures concept game hour golden""".split())
# Of the scene's look, yet with an object's name when they stand in a sentence ("a painting on the wall").
LOOK_OR_THING = frozenset(("painting", "paintings", "drawing", "sketch", "photograph", "picture", "shadow", "shadows",
                           "illustration", "lights", "comic", "cartoon", "film", "drone"))

PLACES_IN_FRAME = frozenset("""left right top bottom front back side sides middle center centre edge edges end ends
foreground background backdrop distance midground corner interior exterior inside outside""".split())

ABSTRACT = frozenset("""tableau scene scenes scenery video videos clip clips movie montage sequence moment moments
time times way ways sense feeling feelings feel air mood beauty elegance charm grace serenity tranquility
tranquillity calm peace quiet quietude stillness silence solitude warmth coolness depth drama mystery nostalgia
contentment joy happiness sadness excitement determination confidence energy power strength movement movements
motion motions action actions pose posture position positions expression expressions emotion emotions smile laughter
look glance gaze attention focus presence absence essence spirit history legacy heritage culture tradition era age
past future present passage imperfection importance theme subject subjects object objects element elements feature
features aspect aspects characteristic combination contrast balance harmony atmosphere ambiance ambience environment
context setting settings surface surfaces shape shapes form forms pattern patterns size sizes color colors colour
colours hue hues shade shades tone tones texture textures detail details light lighting glow shine sheen sparkle
brightness darkness reflection reflections gleam radiance illumination touch hint trace traces array variety range
series part parts portion half whole rest majority amount level degree height width length distance speed pace
rhythm direction directions angle movement turn start beginning end middle finish stop step steps process progress
transformation transition change changes growth result effect effects impact influence control support rhythm sound
sounds noise music song melody tune scent scents aroma smell taste breath breathing life death fate dream dreams
imagination fantasy magic wonder awe idea concept thought thoughts memory memories story stories narrative tale
testament symbol witness activity conversation contemplation comfort relaxation leisure pleasure luxury lifestyle
work job task effort skill skills talent care love passion friendship relationship connection interaction
communication stroll stride stare ride nap rest walk fight battle flight jump fall race pause view views style
styles camera footage shot shots photo photos photograph image images picture video quality resolution definition 4k
8k hd uhd fps frame frames zoom close-up closeup up down in out art artwork animation cgi render kind type sort
thing things something anything lapse perspective pan tilt tracking edge corner addition vibe focal point points
center centre intensity vastness isolation scale realism symmetry composition simplicity sophistication hour hours
minute minutes second seconds week month year years fashion manner order case use hold grip movie theme ease purpose
backdrop background foreground midground left right top bottom front side sides temperature pressure gravity density
space-time one ones other others bit while tranquillness vibrancy vitality hustle bustle technique techniques
display show performance glory splendor grandeur majesty allure ambition anticipation anger fear hope surprise
curiosity concentration precision accuracy appearance aerobics cold haven glamour vintage abstraction technology
practice fun session activity exercise design designs mess agreement travel flow transportation season seasons
motionless harmonize sci fi sci-fi celebration hum sight content layer layers mix centerpiece medium entirety iridescent
glisten reaction accent accents mid interplay glimpse coloration visibility freshness demeanor wealth fortune danger
dangers viewer viewers slo-mo mo symmetry resolute""".split())

# In front of a noun these name a kind of it ("dining table"); every other -ing word after a noun is what it does.
ATTRIBUTIVE_ING = frozenset("""dining swimming parking reading sewing shopping living washing frying cutting
skipping sleeping hiking fishing rowing racing vending waiting operating boxing drawing rocking riding knitting
weaving spinning baking cooking training landing building wedding evening morning running walking climbing ironing
dressing meeting rolling weeping flying carving chopping serving mixing hunting diving skating""".split())

# No prompt names a thing with these, whatever the tagger thinks.
NEVER_NOUNS = frozenset("""a an the this that these those and or but if then than as so not no very too also just
only its his her their our my your he she it they we you i who which what where when while there here up down in out
on off over under at by to from with without of for is are was were be been being has have had do does did can could
will would should may might must slowly quickly gently suddenly together apart away around forward backward forwards
backwards upward downward upwards downwards left right front back same other another each every all both some any
such more most less least few many much several one two three four five six seven eight nine ten lazily peacefully
gracefully happily indoor outdoor indoors outdoors beautiful cute happy sad tiny old new young empty full bright
dark ancient warm long faint tranquil soft gentle wet dry hot cool wide narrow tall short large small huge serene
calm quiet modern vintage elegant delicate rustic cozy lush vast rich pale deep smooth rough sharp sleek sturdy
wispy fluffy shiny glossy matte dense thick thin heavy fresh lively busy crowded abandoned lone single double solid
transparent translucent motionless stationary e g etc""".split())
