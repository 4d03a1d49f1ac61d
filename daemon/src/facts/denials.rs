//! Words that decide what a sentence does beside the classes of the lexicon: those that deny, and those that ask for
//! something unknown.

use super::lexicon::is_joined_script;

/// Words that deny, in all languages whose words are separated by spaces.
const DENIALS: &str = "\
     never not don't dont doesn't mustn't shouldn't cannot can't no avoid without nie niemals nicht kein keine keinen \
     vermeide keinesfalls jamais ne n' pas aucun évite évitez nunca jamás no evita mai non evitare evita não evite nooit \
     niet geen vermijd aldri aldrig ikke inte undvik nigdy nie unikaj никогда не нельзя избегай ніколи asla değil yasak لا \
     أبدا ممنوع אסור אל לא नहीं मत đừng không jangan tidak";
/// Denials in scripts that join words, found anywhere in a sentence.
const JOINED_DENIALS: [&str; 17] = [
    "不",
    "勿",
    "别",
    "別",
    "禁止",
    "ない",
    "禁",
    "避け",
    "지 마",
    "지마",
    "금지",
    "안 ",
    "않",
    "ไม่",
    "อย่า",
    "ห้าม",
    "没",
];

/// Returns whether a sentence in lower case denies or forbids something.
pub(super) fn denies(words: &[&str], sentence: &str) -> bool {
    let is_denial = |word: &str| {
        // French joins the denial with the verb: `n'utilise`.
        let word = word.strip_prefix("n'").map_or(word, |_| "n'");
        DENIALS.split_whitespace().any(|one| one == word)
    };
    words.iter().any(|word| is_denial(word))
        || sentence.chars().any(is_joined_script)
            && JOINED_DENIALS.iter().any(|part| sentence.contains(part))
}

/// Words with which a question begins that asks for something unknown, in all languages. A question that begins with a
/// verb can give a rule: `Could you never do that?`
const INTERROGATIVES: &str = "\
     how what which who whose when where why wie was welche welchem welchen welcher welches wer wann wo \
     warum comment quel quelle quels quelles qui quand où pourquoi qué cómo cuál cuánto quién cuándo \
     dónde como qual quando onde come quale chi dove perché как какой какая какие кто когда где почему \
     hoe welk welke wanneer waar waarom jak który kiedy gdzie nasıl hangi";

/// Returns whether a word in lower case asks for something unknown.
pub(super) fn is_interrogative(word: &str) -> bool {
    INTERROGATIVES.split_whitespace().any(|one| one == word)
}
