"""Properties of languages, by their codes."""

from __future__ import annotations

# two letters + three letters (ISO 639-2 and 639-3, FLORES), where tokenisers have rules of a
# language; other languages keep their code
_THREE_LETTERS = """
    asasm bnben bobod botib cacat csces cscze dedeu deger dzdzo elell elgre eneng esspa etest etekk
    fifin frfra frfre gagle guguj hihin huhun isisl isice itita jajpn kmkhm knkan kokor lolao ltlit
    lvlav lvlvs mlmal mrmar mymya mybur nlnld nldut orori orory papan plpol ptpor roron rorum rurus
    skslk skslo slslv svswe tatam tetel ththa zhzho zhchi zhcmn
"""
_LANGUAGES = {"jp": "ja", "cn": "zh", "tet": "tdt"} | {
    codes[2:]: codes[:2] for codes in _THREE_LETTERS.split()
}
# between words: languages that are usually written so, and scripts
_WITHOUT_SPACES = """
    bo cdo dz gan hak hsn ja km lo lzh mnw my nan nod shn th tts wuu yue zh
    hanb hani hans hant hira hrkt jpan kana khmr laoo mymr thai tibt
"""
WITHOUT_SPACES = frozenset(_WITHOUT_SPACES.split())


def language_of(code: str) -> str:
    """Return the language of a code with region or script: "zh-CN" and "zho_Hans" are "zh"."""
    language = code.replace("_", "-").split("-")[0].lower()
    return _LANGUAGES.get(language, language)


def has_spaces(code: str) -> bool:
    """Whether words are separated by spaces, by the script of a code or else by its language."""
    _, *parts = code.lower().replace("_", "-").split("-")
    scripts = [part for part in parts if len(part) == 4 and part.isalpha()]
    return (*scripts, language_of(code))[0] not in WITHOUT_SPACES
