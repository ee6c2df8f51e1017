"""The word tables of the built-in German-English corpus; `builtin_lexicon` reads them.

Every German word has exactly one English word and the other way round, `know` excepted: with an
object it is `kennen`, with a clause `wissen`. The tables are plain text: entries stand apart by a
bar or a line's end, `_` is a space inside of an entry.

Kinds of nouns, as in the object column of the verbs: p person, a animal, e food, k food that is
cooked, w drink, t thing, o thing that opens, h other furniture or part of a house, d document,
c clothes, v vehicle, l place.
"""

from __future__ import annotations

# German[:oblique] gender plural English [English plural]
PERSONS = """
Mann m Männer man men|Frau f Frauen woman women|Junge:Jungen m Jungen boy|Mädchen n Mädchen girl
Bäcker m Bäcker baker|Lehrerin f Lehrerinnen teacher|Ärztin f Ärztinnen doctor|Koch m Köche cook
Student:Studenten m Studenten student|Schülerin f Schülerinnen pupil|Bauer:Bauern m Bauern farmer
Richterin f Richterinnen judge|Maler m Maler painter|Sängerin f Sängerinnen singer
Polizist:Polizisten m Polizisten policeman policemen|Nachbarin f Nachbarinnen neighbour
Freund m Freunde friend|Bruder m Brüder brother|Schwester f Schwestern sister
Mutter f Mütter mother|Vater m Väter father|Tochter f Töchter daughter|Sohn m Söhne son
Onkel m Onkel uncle|Tante f Tanten aunt|König m Könige king|Königin f Königinnen queen
Fahrer m Fahrer driver|Gärtner m Gärtner gardener
Verkäuferin f Verkäuferinnen saleswoman saleswomen|Schneider m Schneider tailor
Dichterin f Dichterinnen poet|Tourist:Touristen m Touristen tourist|Chefin f Chefinnen boss
Kellner m Kellner waiter|Professorin f Professorinnen professor|Künstler m Künstler artist
Gast m Gäste guest|Soldat:Soldaten m Soldaten soldier|Kapitän m Kapitäne captain
Schauspielerin f Schauspielerinnen actress|Großmutter f Großmütter grandmother
Großvater m Großväter grandfather
"""
ANIMALS = """
Hund m Hunde dog|Katze f Katzen cat|Pferd n Pferde horse|Vogel m Vögel bird|Kuh f Kühe cow
Ziege f Ziegen goat|Esel m Esel donkey|Ente f Enten duck|Fuchs m Füchse fox
Maus f Mäuse mouse mice|Bär:Bären m Bären bear|Löwe:Löwen m Löwen lion|Gans f Gänse goose geese
Affe:Affen m Affen monkey
"""
# a plural of - marks a mass noun
FOOD = """
Brot n - bread|Käse m - cheese|Honig m - honey|Apfel m Äpfel apple|Birne f Birnen pear
Kuchen m Kuchen cake|Salat m Salate salad|Kirsche f Kirschen cherry|Keks m Kekse biscuit
Tomate f Tomaten tomato tomatoes|Orange f Orangen orange|Erdbeere f Erdbeeren strawberry
"""
COOKED = """
Fisch m - fish|Fleisch n - meat|Reis m - rice|Ei n Eier egg|Suppe f Suppen soup
Kartoffel f Kartoffeln potato potatoes
"""
DRINKS = """
Milch f - milk|Wein m - wine|Kaffee m - coffee|Tee m - tea|Wasser n - water|Bier n - beer
Saft m - juice
"""
THINGS = """
Regenschirm m Regenschirme umbrella|Spiegel m Spiegel mirror|Messer n Messer knife knives
Gabel f Gabeln fork|Löffel m Löffel spoon|Glas n Gläser glass|Topf m Töpfe pot|Ball m Bälle ball
Puppe f Puppen doll|Geschenk n Geschenke present|Kamera f Kameras camera
Telefon n Telefone telephone|Computer m Computer computer|Ring m Ringe ring|Blume f Blumen flower
Kerze f Kerzen candle|Decke f Decken blanket|Gitarre f Gitarren guitar|Geige f Geigen violin
Werkzeug n Werkzeuge tool|Schlüssel m Schlüssel key|Bild n Bilder picture
U-Bahn-Karte f U-Bahn-Karten subway_ticket|CD-Spieler m CD-Spieler CD_player
"""
OPENING = """
Tür f Türen door|Fenster n Fenster window|Schrank m Schränke cupboard|Tor n Tore gate
Koffer m Koffer suitcase|Kiste f Kisten box|Flasche f Flaschen bottle|Tasche f Taschen bag
"""
HOUSE = """
Tisch m Tische table|Stuhl m Stühle chair|Lampe f Lampen lamp|Uhr f Uhren clock
Mauer f Mauern wall|Bank f Bänke bench|Dach n Dächer roof|Teppich m Teppiche carpet
CD-Regal n CD-Regale CD_shelf CD_shelves
"""
DOCUMENTS = """
Buch n Bücher book|Brief m Briefe letter|Zeitung f Zeitungen newspaper|Roman m Romane novel
Gedicht n Gedichte poem|Bericht m Berichte report|Vertrag m Verträge contract
Rechnung f Rechnungen bill|E-Mail f E-Mails email|Postkarte f Postkarten postcard
Geschichte f Geschichten story|Rede f Reden speech
"""
CLOTHES = """
Hut m Hüte hat|Mantel m Mäntel coat|Hemd n Hemden shirt|Kleid n Kleider dress
Jacke f Jacken jacket|Schal m Schals scarf scarves|Schuh m Schuhe shoe|T-Shirt n T-Shirts T-shirt
Pullover m Pullover sweater|Rock m Röcke skirt|Mütze f Mützen cap
"""
VEHICLES = """
Auto n Autos car|Fahrrad n Fahrräder bicycle|Boot n Boote boat|Schiff n Schiffe ship
Traktor m Traktoren tractor|Roller m Roller scooter|E-Bike n E-Bikes e-bike
"""
# German gender plural English English-plural German-preposition English-preposition
PLACES = """
Garten m Gärten garden gardens in in|Küche f Küchen kitchen kitchens in in
Keller m Keller cellar cellars in in|Haus n Häuser house houses in in
Stadt f Städte city cities in in|Dorf n Dörfer village villages in in
Schule f Schulen school schools in in|Park m Parks park parks in in
Wald m Wälder forest forests in in|Museum n Museen museum museums in in
Theater n Theater theatre theatres in in|Kirche f Kirchen church churches in in
Büro n Büros office offices in in|Hotel n Hotels hotel hotels in in
Restaurant n Restaurants restaurant restaurants in in
Bibliothek f Bibliotheken library libraries in in
Krankenhaus n Krankenhäuser hospital hospitals in in|Zimmer n Zimmer room rooms in in
Wohnung f Wohnungen flat flats in in|Bahnhof m Bahnhöfe station stations an at
Flughafen m Flughäfen airport airports an at|Hafen m Häfen harbour harbours an at
See m Seen lake lakes an at|Fluss m Flüsse river rivers an at|Strand m Strände beach beaches an at
Markt m Märkte market markets auf at|Brücke f Brücken bridge bridges auf on
Wiese f Wiesen meadow meadows auf in|Berg m Berge mountain mountains auf on
Schloss n Schlösser castle castles in in
"""

# Compounds: every modifier goes with every head of its group.
COMPOUNDS = (
    (
        "Garten garden|Küchen kitchen|Keller cellar|Haus house|Schul school|Dorf village|Stadt city"
        "|Hotel hotel|Kirchen church|Büro office|Bahnhofs station|Museums museum|Theater theatre"
        "|Hafen harbour|Park park|Zimmer room|Flur hallway|Schloss castle|Restaurant restaurant"
        "|Turm tower",
        "Tür Fenster Schrank Tor Tisch Stuhl Lampe Uhr Mauer Bank Dach Teppich Schlüssel Bild",
    ),
    (
        "Dorf village|Stadt city|Hafen harbour|Berg mountain|Wald forest|Schloss castle",
        "Schule Kirche Museum Bibliothek Park Markt",
    ),
    (
        "Dorf village|Stadt city|Hotel hotel|Schul school|Theater theatre|Schloss castle"
        "|Hafen harbour",
        "Koch Gärtner Ärztin Maler Bäcker",
    ),
)

# [particle|]infinitive er-form participle[+s with sein] English past subjects objects;
# in the English column + marks a preposition and ++ a particle behind the object.
TRANSITIVE = """
kaufen kauft gekauft buy bought p aekwtohdcv|verkaufen verkauft verkauft sell sold p aekwtohdcv
suchen sucht gesucht look+for looked pa pat|finden findet gefunden find found pa patodcl
sehen sieht gesehen see saw pa patohvl|hören hört gehört hear heard pa pa
besuchen besucht besucht visit visited p pl|lieben liebt geliebt love loved pa pa
loben lobt gelobt praise praised p p|malen malt gemalt paint painted p patohvl
essen isst gegessen eat ate pa ek|trinken trinkt getrunken drink drank pa w
kochen kocht gekocht cook cooked p k|lesen liest gelesen read read p d
schreiben schreibt geschrieben write wrote p d
übersetzen übersetzt übersetzt translate translated p d
reparieren repariert repariert repair repaired p ohv|putzen putzt geputzt clean cleaned p ohtv
waschen wäscht gewaschen wash washed p cv|tragen trägt getragen carry carried p th
verlieren verliert verloren lose lost p tcd|vergessen vergisst vergessen forget forgot p tcd
verstecken versteckt versteckt hide hid p tdc|stehlen stiehlt gestohlen steal stole p tvac
brauchen braucht gebraucht need needed p ptohcv|kennen kennt gekannt know knew p pl
verstehen versteht verstanden understand understood p pd|bauen baut gebaut build built p ohvl
beobachten beobachtet beobachtet watch watched pa pa|füttern füttert gefüttert feed fed p a
retten rettet gerettet rescue rescued p pa|bestellen bestellt bestellt order ordered p ekwtc
bezahlen bezahlt bezahlt pay+for paid p ekwtc|jagen jagt gejagt chase chased a a
an|rufen ruft angerufen call called p p|auf|machen macht aufgemacht open opened p o
zu|machen macht zugemacht close closed p o|ab|schließen schließt abgeschlossen lock locked p o
ab|holen holt abgeholt pick++up picked p pt|ein|laden lädt eingeladen invite invited p p
mit|bringen bringt mitgebracht bring++along brought p tekwdp
weg|werfen wirft weggeworfen throw++away threw p tdc
an|sehen sieht angesehen look+at looked pa pathl|auf|essen isst aufgegessen eat++up ate pa ek
aus|suchen sucht ausgesucht choose chose p tchd
zurück|geben gibt zurückgegeben give++back gave p tdc
auf|hängen hängt aufgehängt hang++up hung p c|vor|lesen liest vorgelesen read++aloud read p d
"""
INTRANSITIVE = """
schlafen schläft geschlafen sleep slept pa -|arbeiten arbeitet gearbeitet work worked p -
warten wartet gewartet wait waited pa -|lachen lacht gelacht laugh laughed p -
weinen weint geweint cry cried p -|singen singt gesungen sing sang p -
tanzen tanzt getanzt dance danced p -|spielen spielt gespielt play played pa -
sitzen sitzt gesessen sit sat pa -|ein|schlafen schläft eingeschlafen+s fall++asleep fell pa -
auf|wachen wacht aufgewacht+s wake++up woke pa -|an|kommen kommt angekommen+s arrive arrived p -
"""
LEAVING = """
auf|stehen steht aufgestanden+s get++up got p -
zurück|kommen kommt zurückgekommen+s come++back came pa -
weg|laufen läuft weggelaufen+s run++away ran pa -
"""
MOTION = """
gehen geht gegangen+s go went pa -|laufen läuft gelaufen+s run ran pa -
kommen kommt gekommen+s come came pa -|fahren fährt gefahren+s drive drove p -
reisen reist gereist+s travel travelled p -
"""
DATIVE = """
helfen hilft geholfen help helped p pa|danken dankt gedankt thank thanked p p
folgen folgt gefolgt+s follow followed pa pa|antworten antwortet geantwortet answer answered p p
vertrauen vertraut vertraut trust trusted pa p
"""
DITRANSITIVE = """
geben gibt gegeben give gave p tdcekw|zeigen zeigt gezeigt show showed p tdcohv
schicken schickt geschickt send sent p tdc|bringen bringt gebracht bring brought p tdcekw
"""
CLAUSAL = """
wissen weiß gewusst know knew p dass,wh,ob|sagen sagt gesagt say said p dass
glauben glaubt geglaubt believe believed p dass|fragen fragt gefragt ask asked p ob,wh
erklären erklärt erklärt explain explained p dass,wh|hoffen hofft gehofft hope hoped p dass
"""
CONTROL = """
versuchen versucht versucht try tried p -|beschließen beschließt beschlossen decide decided p -
vergessen vergisst vergessen forget forgot p -
versprechen verspricht versprochen promise promised p -
"""

# German stem English kinds
ADJECTIVES = """
alt alt old patohdcvl|jung jung young pa|klein klein small atohcvl|groß groß big atohvl
neu neu new tohdcvl|schön schön beautiful tohdcvl|müde müd tired pa|hungrig hungrig hungry pa
krank krank sick pa|klug klug clever pa|freundlich freundlich friendly p|nett nett nice p
mutig mutig brave pa|traurig traurig sad pa|fleißig fleißig diligent p|reich reich rich p
arm arm poor p|berühmt berühmt famous p|glücklich glücklich happy pa|nervös nervös nervous p
wild wild wild a|schwer schwer heavy toh|teuer teur expensive tohdcvw|billig billig cheap tohdcvw
kaputt kaputt broken ohv|schmutzig schmutzig dirty tohcv|rot rot red tohcv|blau blau blue tohcv
grün grün green tohcv|schwarz schwarz black tohcv|weiß weiß white tohcv|gelb gelb yellow tohcv
frisch frisch fresh ek|kalt kalt cold wk|warm warm warm wkc|süß süß sweet e
lecker lecker delicious ekw|lang lang long d|kurz kurz short d
interessant interessant interesting d|langweilig langweilig boring d|wichtig wichtig important d
ruhig ruhig quiet l|modern modern modern lhv
"""
# Groups: any, pres, past and next go with all, present, past and modal clauses; often stands
# before the English verb, rarely does so and is never fronted.
TIMES = """
heute today any|jetzt now pres|jeden_Tag every_day pres|abends in_the_evening pres
am_Montag on_Monday any|am_Freitag on_Friday any|am_Sonntag on_Sunday any|im_Sommer in_summer any
im_Winter in_winter any|gestern yesterday past|letzte_Woche last_week past
letztes_Jahr last_year past|morgen tomorrow next|bald soon next|nächste_Woche next_week next
oft often often|immer always rarely|manchmal sometimes often|selten rarely rarely|nie never rarely
"""
MANNERS = """
schnell quickly|langsam slowly|leise quietly|vorsichtig carefully|heimlich secretly
schweigend silently|geduldig patiently|ruhig calmly|fröhlich cheerfully|allein alone
"""
NUMBERS = """
zwei two|drei three|vier four|fünf five|sechs six|sieben seven|acht eight|neun nine|zehn ten
elf eleven|zwölf twelve
"""
MEN = "Peter Thomas Lukas Paul Felix Jonas"
WOMEN = "Anna Maria Julia Sophie Clara Emma"
CITIES = """
Berlin Berlin|Hamburg Hamburg|Wien Vienna|München Munich|Köln Cologne|Zürich Zurich
Nürnberg Nuremberg|Paris Paris
"""

# Modal verbs: ich, du, er, wir; the English word; whether English takes do-support and "to".
MODALS: dict[str, tuple[tuple[str, str, str, str], str, bool]] = {
    "können": (("kann", "kannst", "kann", "können"), "can", False),
    "müssen": (("muss", "musst", "muss", "müssen"), "have", True),
    "wollen": (("will", "willst", "will", "wollen"), "want", True),
    "sollen": (("soll", "sollst", "soll", "sollen"), "should", False),
    "dürfen": (("darf", "darfst", "darf", "dürfen"), "may", False),
    "werden": (("werde", "wirst", "wird", "werden"), "will", False),
}
