//! The phrases that mark decisions, next steps and errors, in the languages of `facts::lexicon`.
//!
//! Phrases are in lower case and are looked for anywhere in a line, because most of these languages join or bend their
//! words. A language that is missing loses these lines in notes without a model and nothing else.

/// What a line reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// Something was decided.
    Decision,
    /// A next step.
    NextStep,
    /// A program failed.
    Error,
}

/// Returns whether a line has a mark.
pub(super) fn has_mark(line: &str, mark: Mark) -> bool {
    let phrases = match mark {
        Mark::Decision => DECISIONS,
        Mark::NextStep => NEXT_STEPS,
        Mark::Error => ERRORS,
    };
    let line = line.to_lowercase();
    phrases.iter().any(|phrase| line.contains(phrase))
}

const DECISIONS: &[&str] = &[
    // English
    "[decision]",
    "decision:",
    "decided to",
    "we will use",
    "we'll use",
    "let's use",
    "i'll use",
    "i will use",
    "going with",
    "chose ",
    "settled on",
    "agreed to",
    // German
    "entscheidung:",
    "entschieden",
    "beschlossen",
    "wir verwenden",
    "wir nehmen",
    "wir nutzen",
    "ich verwende",
    // French
    "décision :",
    "décision:",
    "décidé",
    "nous utiliserons",
    "nous utilisons",
    "nous avons choisi",
    "j'ai choisi",
    // Spanish and Portuguese
    "decisión:",
    "decidido",
    "decidimos",
    "usaremos",
    "vamos a usar",
    "elegimos",
    "he elegido",
    "decisão:",
    "vamos usar",
    "escolhemos",
    "escolhi ",
    // Italian
    "decisione:",
    "abbiamo deciso",
    "ho deciso",
    "useremo",
    "abbiamo scelto",
    "ho scelto",
    // Dutch
    "beslissing:",
    "besloten",
    "we gebruiken",
    "gekozen voor",
    // Swedish, Danish, Norwegian
    "beslut:",
    "beslutat",
    "besluttet",
    "beslutning:",
    "vi använder",
    "vi bruker",
    "vi bruger",
    // Polish
    "decyzja:",
    "zdecydowa",
    "użyjemy",
    "wybraliśmy",
    // Russian and Ukrainian
    "решение:",
    "решили",
    "решено",
    "будем использовать",
    "выбрали",
    "вирішили",
    "рішення:",
    // Turkish
    "karar:",
    "karar verdik",
    "kullanacağız",
    // Arabic and Hebrew
    "قررنا",
    "القرار:",
    "سنستخدم",
    "החלטנו",
    "נשתמש ב",
    // Hindi
    "निर्णय:",
    "तय किया",
    "उपयोग करेंगे",
    // Vietnamese and Indonesian
    "quyết định",
    "chúng ta sẽ dùng",
    "keputusan:",
    "memutuskan",
    "kita gunakan",
    // Chinese, Japanese, Korean, Thai
    "决定",
    "決定",
    "我们用",
    "我們用",
    "将使用",
    "采用",
    "採用",
    "に決め",
    "を使うことに",
    "결정",
    "하기로 했",
    "사용하기로",
    "ตัดสินใจ",
];

const NEXT_STEPS: &[&str] = &[
    // English
    "[next]",
    "next:",
    "next step",
    "next,",
    "todo",
    "to do:",
    "remaining:",
    "still need",
    // German
    "nächste schritte",
    "nächster schritt",
    "als nächstes",
    "als nächster",
    "noch offen",
    "prochaine étape",
    "prochaines étapes",
    "il reste à",
    "siguiente paso",
    "siguientes pasos",
    "próximos pasos",
    "a continuación:",
    "falta por",
    "próximo passo",
    "próximos passos",
    "prossimo passo",
    "prossimi passi",
    "resta da",
    "volgende stap",
    "nästa steg",
    "neste steg",
    "næste skridt",
    "następny krok",
    "następne kroki",
    "следующий шаг",
    "следующие шаги",
    "осталось",
    "наступний крок",
    "sonraki adım",
    "الخطوة التالية",
    "الخطوات التالية",
    "השלב הבא",
    "अगला कदम",
    "अगले कदम",
    "bước tiếp theo",
    "langkah selanjutnya",
    "langkah berikutnya",
    "下一步",
    "接下来",
    "接下來",
    "待办",
    "次のステップ",
    "次に",
    "残りの",
    "다음 단계",
    "다음으로",
    "ขั้นตอนถัดไป",
];

const ERRORS: &[&str] = &[
    // Programs, and English
    "error:",
    "error[",
    "fatal:",
    "panicked at",
    "exception",
    "traceback",
    "failed:",
    "test result: failed",
    "cannot find",
    "no such file",
    "permission denied",
    "undefined reference",
    "not found",
    "fehler:",
    "fehlgeschlagen",
    "nicht gefunden",
    "erreur :",
    "erreur:",
    "introuvable",
    "no se encontr",
    "errore:",
    "non trovato",
    "erro:",
    "não encontrad",
    "fout:",
    "niet gevonden",
    "fel:",
    "feil:",
    "fejl:",
    "błąd:",
    "nie znaleziono",
    "ошибка:",
    "не найден",
    "помилка:",
    "hata:",
    "bulunamadı",
    "خطأ:",
    "שגיאה:",
    "त्रुटि:",
    "lỗi:",
    "galat:",
    "错误",
    "錯誤",
    "失败",
    "失敗",
    "エラー",
    "오류",
    "실패",
    "ข้อผิดพลาด",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_found_in_many_languages() {
        let check = |line: &str, mark| assert!(has_mark(line, mark), "{line}");
        check("So we will use TCP.", Mark::Decision);
        check("Wir haben uns für TCP entschieden.", Mark::Decision);
        check("Nous avons choisi TCP.", Mark::Decision);
        check("Решили использовать TCP.", Mark::Decision);
        check("قررنا استخدام TCP", Mark::Decision);
        check("我们决定使用 TCP。", Mark::Decision);
        check("Nächster Schritt: die Tests", Mark::NextStep);
        check("Prochaine étape : les tests", Mark::NextStep);
        check("Следующий шаг: тесты", Mark::NextStep);
        check("الخطوة التالية: الاختبارات", Mark::NextStep);
        check("下一步：测试", Mark::NextStep);
        check("main.c:4: Fehler: »x« nicht deklariert", Mark::Error);
        check("main.c:4: 错误：‘x’未声明", Mark::Error);
        check("main.c:4: ошибка: «x» не объявлена", Mark::Error);
        for mark in [Mark::Decision, Mark::NextStep, Mark::Error] {
            assert!(!has_mark("The lexer reads one line at a time.", mark));
        }
    }

    #[test]
    fn phrases_are_in_lower_case() {
        for phrase in [DECISIONS, NEXT_STEPS, ERRORS].concat() {
            assert_eq!(phrase, phrase.to_lowercase());
        }
    }
}
