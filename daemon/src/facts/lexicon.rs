//! The words by which a sentence is recognized as a rule, a question, a command or a statement, by language.
//!
//! Closed classes of words only: they say what kind of sentence it is, never what it is about. A language that is
//! missing here loses rules without a value and nothing else, because values are found in any language.
//!
//! Words are lower case and separated by spaces; `_` joins the words of a phrase. Languages without spaces between
//! words, and Korean, whose endings join the word, are matched anywhere in the sentence.

use std::sync::LazyLock;

use rustc_hash::FxHashMap;

/// What a word says about its sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum WordClass {
    /// Demands or forbids: always, never, must.
    Rule,
    /// Advises: use, prefer, keep.
    Advice,
    /// Gives a name: is called, stands for.
    Naming,
    /// Asks to remember.
    Remember,
    /// Announces that something differs from before: now, actually, instead.
    Change,
    /// Takes something back: forget it, no longer valid.
    Retract,
    /// Begins a question.
    Question,
    /// Begins a command.
    Command,
    /// States something: is, are, has.
    Statement,
    /// Belongs to the speaker: my, our.
    Own,
    /// May precede a sentence without changing its kind: please, and, then.
    Filler,
    /// Names a month or a day.
    Date,
    /// Is a unit behind a number.
    Unit,
    /// Describes what happens at the moment: fails, error, tried.
    Transient,
    /// Points at something said before: it, this.
    Pronoun,
    /// Has little meaning of its own.
    Function,
}

/// The number of classes.
const N_CLASSES: usize = WordClass::Function as usize + 1;

/// The words of one language, in the order of [`WordClass`].
struct Language {
    /// Whether words are found anywhere in a sentence, because nothing separates them.
    is_joined: bool,
    words: [&'static str; N_CLASSES],
}

const fn spaced(words: [&'static str; N_CLASSES]) -> Language {
    Language { is_joined: false, words }
}

const fn joined(words: [&'static str; N_CLASSES]) -> Language {
    Language { is_joined: true, words }
}

/// The position of German, which writes all nouns with a capital.
pub(super) const GERMAN: u32 = 1 << 1;

const LANGUAGES: &[Language] = &[
    // English
    spaced([
        "must mustn't never always only shall required requires mandatory forbidden prohibited allowed don't dont \
         do_not \
         no_emoji no_emojis no_lists no_bullets no_comments no_headings no_jargon make_sure under_no_circumstances \
         at_least at_most no_more_than avoid ensure insist unless",
        "use prefer prefers preferred keep stick_to favor favour rather_than by_default default follow_the should \
         shouldn't has_to have_to needs_to cannot agreed decided settled_on we_chose",
        "called named call_it call_this call_that call_the call_me name_it name_is stands_for known_as refer_to alias \
         codename nicknamed means",
        "remember note_that keep_in_mind bear_in_mind for_the_record don't_forget dont_forget do_not_forget \
         never_forget fyi for_reference \
         important take_note for_later",
        "now actually instead anymore changed changes moved moves switched switch correction correct_that update \
         updated \
         from_now_on rather after_all back_to wrong sorry new henceforth going_forward replaced renamed rescheduled \
         postponed scratch_that change_of_plan",
        "forget ignore no_longer never_mind nevermind scrap disregard retract drop_the not_true take_back cancel_that \
         doesn't_apply does_not_apply",
        "what which where who whose whom how why when do does did is are was were can could would will should have has \
         any am may shall",
        "rename add fix run show write create delete remove move explain make implement refactor update change check \
         test try find look list print generate give tell help build install open close read search summarize \
         summarise \
         translate convert continue go let's let do set put replace edit review improve debug deploy commit push merge \
         revert undo rewrite describe compare calculate compute draft send start stop restart propose suggest sort \
         extract split format clean bump wire hook log rerun repeat",
        "is are was were has have be will am it's that's there's i'm we're i've we've runs lives uses equals belongs \
         costs listens expires starts ends needs lies",
        "my our mine ours i'm i_am we're we_are i_live i_work we_live we_work",
        "please now then ok okay and also so but well next first finally just hey hi hello yes no great good thanks \
         perfect alright cool right sorry actually could can would will you kindly by_the_way btw",
        "monday tuesday wednesday thursday friday saturday sunday january february march april june july august \
         september october november december mondays tuesdays wednesdays thursdays fridays saturdays sundays",
        "second seconds minute minutes hour hours day days week weeks month months year years percent dollars euros \
         o'clock degrees meters miles",
        "fails failed failing fail error errors crash crashes crashed exception panic panics warning warnings bug \
         broken tried ran got getting seeing saw still stuck traceback confused not_sure i'm_sure i'm_done i'm_ready \
         i'm_lost i'm_back we're_done \
         we_are_done we're_ready",
        "it this that those these there it's that's there's here's",
        "a an the of to in on at for from by with and or but if as this that these those it its i we you he she they \
         them his her their us me be been being is are was were do does did has have had not no so than then there \
         here just also very too s t into over about up out off all some what which who will would can could should \
         may might must shall let please when while because",
    ]),
    // German
    spaced([
        "muss müssen musst müsst niemals nie immer nur ausschließlich stets darf dürfen darfst verboten pflicht \
         zwingend \
         unbedingt keinesfalls auf_keinen_fall bitte_nicht mindestens höchstens sollst sollen soll sollte erlaubt \
         vermeide vermeiden grundsätzlich jedes_mal keine keinen",
        "verwende verwenden benutze benutzen nutze nutzen nimm bevorzuge bevorzugen lieber standardmäßig halte achte \
         entschieden vereinbart beschlossen",
        "heißt heißen genannt nenne nennen nennt nennen_wir bezeichnet steht_für bedeutet",
        "merke merk merken denk_daran denke_daran nicht_vergessen vergiss_nicht vergesst_nicht vergessen_sie_nicht \
         zur_info wichtig beachte notiere",
        "jetzt nun stattdessen doch eigentlich geändert korrektur ab_jetzt ab_sofort nunmehr verschoben umgezogen \
         neu neue \
         neuer neues wieder inzwischen künftig falsch",
        "vergiss ignoriere nicht_mehr gilt_nicht hinfällig streiche verwirf",
        "was welche welcher welches welchen wo wer wessen wem wen wie warum wieso wann kannst könntest ist sind hat \
         habt \
         hast würdest wozu woher wohin",
        "benenne füge behebe repariere zeige schreibe erstelle lösche entferne verschiebe erkläre mach mache prüfe \
         teste \
         suche finde baue öffne lies fasse übersetze ändere ersetze starte stoppe führe gib sag hilf liste setze \
         implementiere aktualisiere zeig schreib erzeuge installiere",
        "ist sind war waren hat haben wird werden lautet beträgt liegt läuft wohnt gehört kostet gilt findet beginnt \
         bin",
        "mein meine meinen meiner meinem unser unsere unseren unserer unserem ich_bin wir_sind bin_ich",
        "bitte jetzt dann ok und auch also aber gut nun danke ja nein zuerst als_nächstes kannst könntest du übrigens",
        "montag dienstag mittwoch donnerstag freitag samstag sonntag januar februar märz april mai juni juli august \
         september oktober november dezember",
        "sekunde sekunden minute minuten stunde stunden tag tage tagen woche wochen monat monate jahr jahre prozent \
         uhr \
         grad meter",
        "fehler fehlgeschlagen schlägt abgestürzt abstürzt warnung kaputt versucht bekomme bekam sehe klappt \
         funktioniert bin_fertig bin_bereit bin_soweit nicht_sicher bin_sicher",
        "es das dies dieses diese",
        "der die das den dem des ein eine einen einem einer eines und oder aber ist sind war nicht von zu im in am \
         an auf \
         für mit bei aus nach als wie es er sie wir ihr ich du sich auch noch schon so dass wenn dann hat haben wird \
         werden zum zur über um vor durch uns mir dir",
    ]),
    // French
    spaced([
        "toujours jamais doit doivent devez dois faut uniquement seulement interdit interdite obligatoire \
         obligatoirement au_moins au_plus évite évitez ne_pas n'utilise n'utilisez aucun impérativement exclusivement \
         systématiquement",
        "utilise utilisez utiliser préfère préférez préférer privilégie privilégiez garde gardez par_défaut emploie \
         décidé convenu",
        "s'appelle s'appellent appelle appelons appelé appelée nommé nommée nomme surnommé signifie",
        "souviens-toi rappelle-toi rappelez-vous retiens retenez note notez n'oublie n'oubliez pour_info important \
         souvenez-vous souviens rappelle",
        "maintenant désormais finalement plutôt changé change correction déplacé dorénavant nouveau nouvelle en_fait \
         remplacé reporté",
        "oublie oubliez ignore ignorez plus_valable n'est_plus laisse_tomber annule",
        "quel quelle quels quelles où qui comment pourquoi quand combien est-ce peux-tu pouvez-vous peux pouvez \
         qu'est-ce que pourrais",
        "renomme ajoute corrige lance montre écris crée supprime déplace explique fais vérifie teste cherche trouve \
         ouvre \
         lis résume traduis modifie remplace démarre donne dis aide liste génère installe affiche",
        "est sont était a ont sera c'est j'ai habite habitons coûte commence se_trouve tourne écoute suis sommes",
        "mon ma mes notre nos mien je_suis nous_sommes",
        "s'il te_plaît plaît puis ensuite et aussi alors mais bon merci oui non d'abord au_fait",
        "lundi mardi mercredi jeudi vendredi samedi dimanche janvier février mars avril mai juin juillet août \
         septembre \
         octobre novembre décembre",
        "seconde secondes minute minutes heure heures jour jours semaine semaines mois an ans année années pourcent \
         degrés",
        "erreur erreurs échoue échoué plante planté exception avertissement cassé essayé obtiens suis_prêt \
         suis_prête suis_perdu suis_perdue pas_sûr pas_sûre",
        "ça c'est cela ce il",
        "le la les l un une des de du d et ou mais est sont à au aux en dans sur pour par avec sans que qui ce cette \
         ces \
         il elle nous vous je tu ils elles se ne pas plus son sa ses leur y où si comme être",
    ]),
    // Spanish
    spaced([
        "siempre nunca jamás debe deben debes debemos solo sólo solamente únicamente prohibido obligatorio hay_que \
         no_uses \
         no_utilices no_debe por_lo_menos al_menos como_máximo evita evite exclusivamente tiene_que tienen_que",
        "usa use utiliza utilice usar utilizar prefiero prefiere preferimos mantén por_defecto emplea decidimos \
         acordamos decidido",
        "se_llama se_llaman llamado llamada llama llámalo llámala llamamos nombre_es significa",
        "recuerda recuerde recuerden ten_en_cuenta no_olvides no_te_olvides no_olvide no_olviden toma_nota anota \
         importante acuérdate",
        "ahora realmente cambiado cambió cambia corrección movido nuevo nueva a_partir_de_ahora mejor_dicho de_hecho \
         reemplazado en_adelante",
        "olvida olvídate ignora ya_no descarta",
        "qué cuál cuáles dónde quién cómo cuándo cuánto cuántos puedes podrías puede",
        "renombra añade agrega arregla corrige ejecuta muestra escribe crea borra elimina mueve explica haz revisa \
         prueba \
         busca encuentra abre lee resume traduce cambia reemplaza inicia dame dime ayuda lista genera instala",
        "es son está están era fue tiene tienen hay será vive cuesta empieza escucha corre tengo soy somos",
        "mi mis nuestro nuestra nuestros nuestras soy somos",
        "por_favor luego entonces y también así pero bueno gracias sí no primero vale",
        "lunes martes miércoles jueves viernes sábado domingo enero febrero marzo abril mayo junio julio agosto \
         septiembre octubre noviembre diciembre",
        "segundo segundos minuto minutos hora horas día días semana semanas mes meses año años grados",
        "error errores falla fallan falló falló excepción advertencia roto intenté obtengo",
        "esto eso esta ese este ello",
        "el la los las un una unos unas de del y o pero es son en a al por para con sin que se su sus lo le les me \
         te nos \
         yo tú él ella no como más este esta estos estas si muy ya",
    ]),
    // Italian
    spaced([
        "sempre mai deve devono devi dobbiamo solo soltanto solamente unicamente vietato obbligatorio bisogna \
         non_usare \
         non_devi almeno al_massimo evita evitare esclusivamente occorre",
        "usa usare usate utilizza utilizzare preferisco preferisci preferiamo mantieni di_default deciso concordato",
        "si_chiama si_chiamano chiamato chiamata chiamalo chiamala chiamiamo significa",
        "ricorda ricordati ricordate tieni_presente non_dimenticare non_dimenticarti nota importante annota",
        "adesso ora invece cambiato cambia correzione spostato nuovo nuova d'ora_in_poi in_realtà anzi sostituito",
        "dimentica ignora non_più lascia_perdere",
        "quale quali dove chi come perché quando quanto quanti cosa puoi potresti",
        "rinomina aggiungi correggi esegui mostra scrivi crea cancella elimina sposta spiega fai controlla prova cerca \
         trova apri leggi riassumi traduci modifica cambia sostituisci avvia dammi dimmi aiuta elenca genera installa",
        "è sono era ha hanno sarà c'è abita vive costa inizia ascolta ho",
        "mio mia miei mie nostro nostra nostri nostre io_sono noi_siamo",
        "per_favore poi allora e anche quindi ma bene grazie sì no prima",
        "lunedì martedì mercoledì giovedì venerdì sabato domenica gennaio febbraio marzo aprile maggio giugno luglio \
         agosto settembre ottobre novembre dicembre",
        "secondo secondi minuto minuti ora ore giorno giorni settimana settimane mese mesi anno anni gradi",
        "errore errori fallisce fallito crasha eccezione avviso rotto provato ottengo",
        "questo questa ciò quello",
        "il lo la i gli le un uno una di del della dei delle e o ma è sono in a al alla per da dal con su che si non \
         come \
         più questo questa se ci ne mi ti io noi",
    ]),
    // Portuguese
    spaced([
        "sempre nunca jamais deve devem devemos só somente apenas unicamente proibido obrigatório tem_que temos_que \
         não_use não_usar pelo_menos no_máximo evite evitar exclusivamente precisa",
        "use usa usar usem utilize utilizar prefiro prefere preferimos mantenha por_padrão decidimos combinamos \
         decidido",
        "se_chama chama-se chamado chamada chame chamamos significa",
        "lembre lembre-se lembra lembrem não_esqueça não_se_esqueça não_esquece não_esqueçam tenha_em_mente anote \
         importante",
        "agora mudou mudamos mudado correção movido novo nova a_partir_de_agora na_verdade aliás substituído doravante",
        "esqueça esquece ignore ignora não_vale descarte",
        "qual quais onde quem como quando quanto quantos você_pode pode poderia",
        "renomeie adicione corrija execute mostre escreva crie apague remova mova explique faça verifique teste \
         procure \
         encontre abra leia resuma traduza mude substitua inicie dê diga ajude liste gere instale",
        "é são está estão era foi tem têm há será fica mora custa começa escuta tenho sou somos",
        "meu minha meus minhas nosso nossa nossos nossas sou somos",
        "por_favor depois então e também assim mas bom obrigado sim primeiro",
        "segunda-feira terça-feira quarta-feira quinta-feira sexta-feira segunda terça quarta quinta sexta sábado \
         domingo \
         janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro",
        "segundo segundos minuto minutos hora horas dia dias semana semanas mês meses ano anos graus",
        "erro erros falha falhou falham exceção aviso quebrado tentei recebi",
        "isto isso este esta esse",
        "o a os as um uma de do da dos das e ou mas é são em no na nos nas por para com sem que se seu sua ao à não \
         como \
         mais este esta isso eu nós ele ela",
    ]),
    // Dutch
    spaced([
        "altijd nooit moet moeten alleen uitsluitend verboden verplicht mag_niet mogen_niet gebruik_geen minstens \
         hoogstens vermijd enkel slechts geen",
        "gebruik gebruiken liever voorkeur standaard houd besloten afgesproken",
        "heet heten genaamd genoemd noem noemen betekent",
        "onthoud vergeet_niet niet_vergeten let_op denk_eraan belangrijk noteer",
        "nu eigenlijk gewijzigd veranderd correctie verplaatst nieuw nieuwe voortaan vanaf_nu toch vervangen",
        "vergeet negeer niet_meer niet_langer",
        "wat welke welk waar wie hoe waarom wanneer kun kunt kan hoeveel",
        "hernoem voeg repareer toon schrijf maak verwijder verplaats leg controleer test zoek vind open lees vertaal \
         wijzig vervang start stop geef zeg help installeer bouw",
        "is zijn was waren heeft hebben wordt worden ligt draait woont kost begint luistert ben",
        "mijn onze ons ik_ben wij_zijn we_zijn",
        "alsjeblieft graag dan en ook dus maar goed bedankt ja nee eerst",
        "maandag dinsdag woensdag donderdag vrijdag zaterdag zondag januari februari maart april mei juni juli \
         augustus \
         september oktober november december",
        "seconde seconden minuut minuten uur uren dag dagen week weken maand maanden jaar procent graden",
        "fout fouten faalt mislukt mislukte crasht uitzondering waarschuwing kapot geprobeerd krijg",
        "het dit dat deze",
        "de het een van en of maar is zijn was niet in op aan voor met bij uit naar als dat die dit deze er je jij \
         wij we \
         ik hij ze om te ook nog al door over",
    ]),
    // Swedish, Danish, Norwegian
    spaced([
        "alltid altid aldri aldrig måste må skal_ikke ska_inte bara endast kun bare förbjudet forbudt obligatorisk \
         minst \
         högst undvik undgå unngå ikke_bruk använd_inte skal ska",
        "använd använda bruk bruke brug bruge helst foretrekk föredrar foretrækker standard",
        "heter hedder kallas kalles kaldes kalla kall betyder",
        "kom_ihåg husk glöm_inte glem_ikke ikke_glem inte_glömma viktigt viktig notera",
        "nu nå egentligen istället i_stedet ändrat endret ændret ny nytt nye flyttad flyttet från_och_med_nu",
        "glöm glem ignorera ignorer inte_längre ikke_lenger ikke_længere",
        "vad hva hvad vilken hvilken var hvor vem hvem hur hvordan varför hvorfor när når kan",
        "lägg fixa kör visa skriv skapa ta_bort flytta förklara gör sök hitta öppna läs ändra ersätt vis lag slett \
         fjern \
         forklar gjør søk finn åpne endre",
        "är er var har blir ligger bor kostar koster börjar starter kör kjører lyssnar lytter",
        "min mitt mina mine vår vårt våra våre vores",
        "snälla takk tack vær_så_snill då så och og också også men bra ja nej nei",
        "måndag tisdag onsdag torsdag fredag lördag söndag mandag lørdag søndag januari januar februari februar mars \
         april \
         maj mai juni juli augusti august september oktober november december desember",
        "sekund sekunder minut minutt minuter minutter timme timmar time timer dag dagar dager vecka uke måned månad \
         år \
         procent prosent grader",
        "fel feil fejl misslyckas misslyckades feiler kraschar kræsjer varning advarsel trasig försökte",
        "det detta dette denna denne",
        "en ett et den det de och og eller men är er var inte ikke i på av for för med till til från fra som att å \
         at om \
         jag jeg vi du han hon hun de sig seg",
    ]),
    // Polish
    spaced([
        "zawsze nigdy musi muszą musisz musimy tylko wyłącznie jedynie zabronione zakaz obowiązkowo nie_wolno \
         nie_używaj \
         co_najmniej najwyżej unikaj należy trzeba powinien powinna powinno",
        "używaj użyj używać stosuj preferuj wolę domyślnie trzymaj ustaliliśmy ustalono",
        "nazywa_się nazywają_się nazwany nazwij nazywamy oznacza",
        "pamiętaj zapamiętaj nie_zapomnij nie_zapominaj uwaga ważne zanotuj",
        "teraz właściwie zamiast zmieniono zmieniło zmieniony poprawka przeniesiony nowy nowa nowe odtąd jednak",
        "zapomnij zignoruj już_nie nieaktualne",
        "co który która które gdzie kto jak dlaczego kiedy ile czy możesz",
        "zmień dodaj napraw uruchom pokaż napisz utwórz usuń przenieś wyjaśnij zrób sprawdź przetestuj znajdź otwórz \
         przeczytaj przetłumacz zamień daj powiedz pomóż zainstaluj wygeneruj",
        "jest są był była było ma mają będzie wynosi mieszka kosztuje zaczyna działa nasłuchuje to jestem jesteśmy",
        "mój moja moje nasz nasza nasze jestem jesteśmy",
        "proszę potem i też więc ale dobrze dziękuję tak nie najpierw",
        "poniedziałek wtorek środa środę czwartek piątek sobota sobotę niedziela niedzielę stycznia lutego marca \
         kwietnia \
         maja czerwca lipca sierpnia września października listopada grudnia",
        "sekund sekundy minut minuty godzin godziny dni dzień tydzień tygodnie miesiąc lat rok procent stopni",
        "błąd błędy błędu awaria wyjątek ostrzeżenie zepsuty próbowałem dostaję",
        "to ten ta",
        "i w na z do że się nie jest to jak o po od dla ale czy tak już za przez przy który ten ta te tego ja my on \
         ona \
         są oraz lub a",
    ]),
    // Russian and Ukrainian
    spaced([
        "всегда никогда должен должна должно должны нужно надо нельзя только исключительно обязательно запрещено \
         запрещен \
         не_используй не_используйте не_надо не_меньше не_больше избегай избегайте завжди ніколи повинен повинна \
         тільки \
         лише обов'язково заборонено треба необходимо",
        "используй используйте использовать предпочитай предпочитаю лучше по_умолчанию придерживайся решили \
         договорились використовуй \
         використовуйте",
        "называется называются зовут назови назовем называем имя означает називається звати",
        "запомни запомните помни помните не_забудь не_забудьте не_забывай не_забывайте не_забудемо не_забувай учти \
         учтите имей_в_виду важно запам'ятай пам'ятай",
        "теперь сейчас вообще-то вместо изменилось изменился поправка перенесли перенесён новый новая новое отныне \
         впредь тепер замість нова",
        "забудь забудьте игнорируй больше_не неактуально ігноруй",
        "что какой какая какое какие где кто как почему когда сколько зачем можешь можете ли що який де хто чому коли",
        "переименуй добавь исправь запусти покажи напиши создай удали перемести объясни сделай проверь найди открой \
         прочитай переведи измени замени дай скажи помоги установи сгенерируй перейменуй додай виправ",
        "это есть был была было были имеет находится работает живёт живет стоит слушает начинается равен равна є це",
        "мой моя моё мое мои наш наша наше наши мій моя",
        "пожалуйста потом затем и также поэтому но хорошо спасибо да нет сначала будь_ласка",
        "понедельник вторник среда среду четверг пятница пятницу суббота субботу воскресенье января февраля марта \
         апреля \
         мая июня июля августа сентября октября ноября декабря",
        "секунд секунды минут минуты часов часа час дней дня день недель недели неделя месяцев лет год года процентов \
         градусов",
        "ошибка ошибку ошибки падает упал упала исключение предупреждение сломан попробовал помилка",
        "это этот эта оно",
        "и в на с к по за из у о от до не что это как для но а же мы я ты он она они вы его её их или если чтобы при \
         так \
         бы ли уже все та то й з на до що це",
    ]),
    // Turkish
    spaced([
        "her_zaman daima asla hiçbir_zaman zorunlu zorunda gerekir gerekiyor sadece yalnızca yasak mutlaka kullanma \
         kullanmayın lazım şart en_az en_fazla kaçın",
        "kullan kullanın kullanalım tercih varsayılan",
        "adı ismi denir diyelim anlamına",
        "unutma hatırla not_et aklında önemli",
        "artık şimdi aslında yerine değişti düzeltme taşındı yeni bundan_sonra",
        "unut boşver geçersiz yoksay",
        "ne hangi nerede kim nasıl neden niçin ne_zaman kaç mi mı mu mü",
        "ekle düzelt çalıştır göster yaz oluştur sil taşı açıkla yap kontrol_et bul aç oku çevir değiştir başlat ver \
         söyle",
        "var vardır olarak oturuyor çalışıyor dinliyor başlıyor",
        "benim bizim",
        "lütfen sonra ve de ama tamam teşekkürler evet hayır önce",
        "pazartesi salı çarşamba perşembe cuma cumartesi pazar ocak şubat mart nisan mayıs haziran temmuz ağustos \
         eylül \
         ekim kasım aralık",
        "saniye dakika saat gün hafta ay yıl yüzde derece",
        "hata hatası hatalar çöktü uyarı bozuk denedim alıyorum",
        "bu şu o",
        "ve bir bu şu o da de ile için ama değil çok daha gibi kadar olan var yok ben biz sen siz onlar",
    ]),
    // Arabic
    spaced([
        "دائما أبدا ابدا يجب فقط ممنوع إلزامي لا_تستخدم لا_تستعمل لابد ينبغي لا_بد حصرا تجنب مطلقا",
        "استخدم استخدموا استعمل يفضل أفضل نفضل افتراضي",
        "اسمه اسمها يسمى تسمى يدعى سمه نسميه يعني",
        "تذكر تذكروا لا_تنس لا_تنسى ملاحظة مهم",
        "الآن الان بدلا تغير تغيرت تصحيح جديد الجديد الجديدة من_الآن أصبح أصبحت",
        "انس تجاهل لم_يعد",
        "ما ماذا من أين كيف لماذا متى كم هل أي",
        "أضف أصلح شغل اعرض اكتب أنشئ احذف انقل اشرح افعل تحقق ابحث افتح اقرأ ترجم غير استبدل ابدأ أعط",
        "هو هي كان كانت يكون تكون يوجد لدينا لدي يعمل يقع يبلغ",
        "اسمي فريقنا مشروعنا",
        "من_فضلك ثم و أيضا لكن حسنا شكرا نعم لا أولا",
        "الاثنين الثلاثاء الأربعاء الخميس الجمعة السبت الأحد يناير فبراير مارس أبريل مايو يونيو يوليو أغسطس سبتمبر \
         أكتوبر \
         نوفمبر ديسمبر",
        "ثانية ثوان دقيقة دقائق ساعة ساعات يوم أيام أسبوع شهر سنة درجة",
        "خطأ أخطاء فشل يفشل استثناء تحذير حاولت",
        "هذا هذه ذلك",
        "في من على إلى عن مع هو هي هذا هذه ذلك التي الذي أن إن كان لا ما و أو ثم كل بعد قبل",
    ]),
    // Hebrew
    spaced([
        "תמיד אף_פעם לעולם חייב חייבת חייבים אסור רק חובה צריך צריכים אל_תשתמש לפחות לכל_היותר",
        "השתמש תשתמש השתמשו עדיף מעדיף",
        "נקרא נקראת קוראים שמו שמה משמעו",
        "זכור תזכור אל_תשכח חשוב שים_לב",
        "עכשיו בעצם במקום השתנה תיקון חדש חדשה מעתה",
        "שכח התעלם כבר_לא",
        "מה איזה איפה מי איך למה מתי כמה האם",
        "הוסף תקן הרץ הראה כתוב צור מחק העבר הסבר עשה בדוק מצא פתח קרא תרגם שנה החלף התחל תן",
        "הוא היא הם יש היה הייתה נמצא עובד",
        "שלי שלנו",
        "בבקשה אז ו גם אבל טוב תודה כן לא קודם",
        "ינואר פברואר מרץ אפריל מאי יוני יולי אוגוסט ספטמבר אוקטובר נובמבר דצמבר",
        "שניות דקות שעה שעות יום ימים שבוע חודש שנה אחוז",
        "שגיאה נכשל נכשלת קרס אזהרה ניסיתי",
        "זה זו",
        "של את על עם אל לא זה זו הוא היא אני אנחנו כי אם או גם כל",
    ]),
    // Hindi
    spaced([
        "हमेशा कभी_नहीं कभी_भी_नहीं चाहिए ज़रूरी जरूरी केवल सिर्फ मत अनिवार्य वर्जित कम_से_कम अधिकतम",
        "उपयोग इस्तेमाल प्रयोग पसंद",
        "नाम कहते मतलब",
        "याद ध्यान मत_भूलना भूलना_मत महत्वपूर्ण नोट",
        "अब बदल नया नई असल_में",
        "भूल अनदेखा अब_नहीं",
        "क्या कौन कहाँ कहां कैसे क्यों कब कितना कितने",
        "जोड़ो ठीक_करो चलाओ दिखाओ लिखो बनाओ हटाओ समझाओ जाँचो खोलो पढ़ो बदलो",
        "है हैं था थी थे होगा रहता रहती हूँ हूं",
        "मेरा मेरी मेरे हमारा हमारी हमारे मैं हम",
        "कृपया फिर और भी लेकिन ठीक धन्यवाद हाँ नहीं पहले",
        "सोमवार मंगलवार बुधवार गुरुवार शुक्रवार शनिवार रविवार जनवरी फरवरी मार्च अप्रैल मई जून जुलाई अगस्त सितंबर \
         अक्टूबर \
         नवंबर दिसंबर",
        "सेकंड मिनट घंटा घंटे दिन सप्ताह महीना महीने साल प्रतिशत",
        "त्रुटि गलती विफल चेतावनी कोशिश",
        "यह वह",
        "का की के में से को पर और है हैं यह वह ये वे एक ने तो भी नहीं कि जो हम मैं आप",
    ]),
    // Vietnamese
    spaced([
        "luôn không_bao_giờ phải chỉ bắt_buộc cấm đừng không_được ít_nhất nhiều_nhất tránh luôn_luôn",
        "dùng sử_dụng ưu_tiên mặc_định",
        "tên gọi_là nghĩa_là",
        "nhớ ghi_nhớ đừng_quên lưu_ý quan_trọng",
        "bây_giờ thay_vì đã_đổi sửa_lại mới từ_nay",
        "quên bỏ_qua không_còn",
        "gì nào đâu ai sao tại_sao khi_nào bao_nhiêu",
        "thêm sửa chạy hiển_thị viết tạo xóa di_chuyển giải_thích kiểm_tra tìm mở đọc dịch đổi",
        "là có được nằm chạy_trên",
        "của_tôi của_chúng_tôi tôi_là",
        "xin vui_lòng rồi và cũng nhưng được cảm_ơn vâng không trước_tiên",
        "thứ_hai thứ_ba thứ_tư thứ_năm thứ_sáu thứ_bảy chủ_nhật",
        "giây phút giờ ngày tuần tháng năm độ",
        "lỗi thất_bại hỏng cảnh_báo đã_thử",
        "nó này đó",
        "của và là có không được cho với các những một này đó trong trên khi để tôi chúng bạn",
    ]),
    // Indonesian and Malay
    spaced([
        "selalu jangan harus hanya wajib dilarang tidak_boleh tidak_pernah minimal maksimal hindari mesti",
        "gunakan pakai sebaiknya lebih_suka bawaan",
        "bernama disebut namanya berarti",
        "ingat ingatlah jangan_lupa catat penting",
        "sekarang sebenarnya diganti berubah koreksi dipindahkan baru mulai_sekarang",
        "lupakan abaikan tidak_lagi",
        "apa mana di_mana siapa bagaimana mengapa kenapa kapan berapa apakah bisakah",
        "tambahkan perbaiki jalankan tampilkan tulis buat hapus pindahkan jelaskan periksa cari buka baca \
         terjemahkan ubah",
        "adalah ialah ada punya berada tinggal",
        "saya kami milik",
        "tolong lalu kemudian dan juga tapi baik terima_kasih ya tidak",
        "senin selasa rabu kamis jumat sabtu minggu januari februari maret april mei juni juli agustus september \
         oktober \
         november desember",
        "detik menit jam hari minggu bulan tahun persen derajat",
        "kesalahan galat gagal rusak peringatan mencoba",
        "itu ini",
        "yang dan di ke dari untuk dengan ini itu tidak pada adalah akan atau oleh juga saya kami kita",
    ]),
    // Chinese
    joined([
        "总是 總是 始终 始終 永远 永遠 绝不 絕不 从不 從不 必须 必須 务必 務必 只能 只用 仅限 僅限 不要 不得 禁止 不能 不许 \
         不許 一定要 一律 切勿 至少 最多 避免 应该 應該 不可",
        "使用 请用 請用 优先 優先 尽量 盡量 默认 預設",
        "叫做 叫作 名叫 名为 名為 称为 稱為 简称 簡稱 名字",
        "记住 記住 记得 記得 别忘 別忘 不要忘 勿忘 注意 请记 請記",
        "现在 現在 其实 其實 改为 改為 改成 改到 更正 换成 換成 今后 今後 从现在 從現在 新的",
        "忘掉 忘了 忽略 不再 作废 作廢 取消",
        "什么 什麼 哪个 哪個 哪里 哪裡 谁 誰 怎么 怎麼 为什么 為什麼 多少 几 吗 嗎 呢",
        "请帮 請幫 帮我 幫我 修改 修复 修復 添加 删除 刪除 创建 建立 运行 執行 写一 寫一 生成 解释 解釋 检查 檢查 测试 測試 把 给我 給我 翻译 翻譯 重命名 重构 实现 更新 优化 看看 列出 查看 \
         显示 请修 请添 请删 请写 请把 请解 请检 继续",
        "是 为 為 有 等于 等於 位于 位於 运行 住在 在",
        "我的 我们的 我們的 我是 我住 我叫 我姓 我们是 我們是 我们住 我們住",
        "",
        "",
        "",
        "错误 錯誤 报错 報錯 失败 失敗 崩溃 异常",
        "这 這 那 它",
        "的 了 在 和 与 就 也 都 还 很 把 被 给 对 我 你 他 她 它 们 这 那 个 是 有 为 请 吧 啊",
    ]),
    // Japanese
    joined([
        "必ず 常に 絶対 決して いつも のみ だけ 禁止 しないで しないこと てはいけ ないでください なければならない べき 必要が \
         必須 以外は 避け 限り",
        "使って 使用して を使う 使うこと 優先 デフォルト で答えて で回答 で返答",
        "と呼 という名前 という名 名前は の名は",
        "覚えて 忘れないで 忘れずに 注意 念のため 重要",
        "今は 実は 代わりに 変更 訂正 移動しました 新しい 今後 これから やっぱり やはり",
        "忘れて 無視 もう使わ 取り消",
        "何 どの どこ 誰 どう なぜ いつ ですか ますか でしょうか",
        "してください て下さい してくれ お願いします 直して 追加して 修正して 作って 見せて",
        "です だ である ます は",
        "私の 私たちの うちの 我々の 私は 僕は 私たちは",
        "",
        "",
        "",
        "エラー 失敗 例外 警告",
        "これ それ あれ",
        "は が を に の で と も へ や か ね よ です ます だ する した して から まで より こと もの",
    ]),
    // Korean
    joined([
        "항상 절대 반드시 꼭 오직 금지 하지_마 하지마 안_됩니다 안_된다 해야 만_사용 최소 최대 늘",
        "사용하세요 사용해 쓰세요 써주세요 선호 기본값 답변 대답",
        "라고_부 라고_합 이름은 라고_해",
        "기억 잊지_마 잊지마 참고 중요",
        "이제 지금은 사실 대신 변경 바뀌 정정 옮겼 새로운 앞으로",
        "잊어 무시 더_이상",
        "무엇 뭐 어느 어디 누구 어떻게 왜 언제 몇 인가요 나요 까요 습니까",
        "해줘 해주세요 하세요 해_주세요 고쳐줘 만들어줘 보여줘 추가해줘 주세요",
        "입니다 이다 이에요 예요 있습니다 있어요 살아요 일해요",
        "제 우리 저희 저는 저희는 나는",
        "",
        "",
        "",
        "에러 오류 실패 예외",
        "이것 그것 이거 그거",
        "은 는 이 가 을 를 에 의 와 과 도 로 으로 에서 까지 부터 그 저 것 수 등",
    ]),
    // Thai
    joined([
        "เสมอ ห้าม ต้อง เท่านั้น อย่า จำเป็น",
        "ใช้ ควร",
        "ชื่อ เรียกว่า",
        "จำไว้ อย่าลืม สำคัญ",
        "ตอนนี้ แทน เปลี่ยน ใหม่",
        "ลืม ไม่ต้อง",
        "อะไร ที่ไหน ใคร อย่างไร ทำไม เมื่อไร ไหม",
        "ช่วย",
        "คือ เป็น อยู่ มี",
        "ของฉัน ของเรา ผมเป็น ฉันเป็น ผมอยู่ ฉันอยู่",
        "",
        "",
        "",
        "ข้อผิดพลาด ล้มเหลว",
        "นี่ นั่น มัน",
        "ที่ และ ใน ของ ให้ ได้ ไป มา ก็ แล้ว",
    ]),
];

/// The classes of the words of a sentence, as a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ClassSet(u16);

impl ClassSet {
    pub(super) const fn has(self, class: WordClass) -> bool {
        self.0 & (1 << class as u16) != 0
    }

    pub(super) const fn with(self, class: WordClass) -> Self {
        Self(self.0 | (1 << class as u16))
    }

    pub(super) const fn join(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A word or the rest of a phrase, with its class, in one language.
#[derive(Clone, Copy)]
struct Entry {
    class: WordClass,
    languages: u32,
    /// The words that must follow, separated by `_`.
    rest: &'static str,
}

/// The words of all languages by their first word.
struct Lexicon {
    spaced: FxHashMap<&'static str, Vec<Entry>>,
    /// The words that are found anywhere in a sentence, by their first character; `_` stands for a space.
    joined: FxHashMap<char, Vec<(String, WordClass)>>,
}

const CLASSES: [WordClass; N_CLASSES] = [
    WordClass::Rule,
    WordClass::Advice,
    WordClass::Naming,
    WordClass::Remember,
    WordClass::Change,
    WordClass::Retract,
    WordClass::Question,
    WordClass::Command,
    WordClass::Statement,
    WordClass::Own,
    WordClass::Filler,
    WordClass::Date,
    WordClass::Unit,
    WordClass::Transient,
    WordClass::Pronoun,
    WordClass::Function,
];

static LEXICON: LazyLock<Lexicon> = LazyLock::new(|| {
    let mut spaced: FxHashMap<&str, Vec<Entry>> = FxHashMap::default();
    let mut joined: FxHashMap<char, Vec<(String, WordClass)>> = FxHashMap::default();
    for (at, language) in LANGUAGES.iter().enumerate() {
        for (class, words) in CLASSES.into_iter().zip(language.words) {
            for word in words.split_whitespace() {
                if language.is_joined {
                    let word = word.replace('_', " ");
                    let first = word.chars().next().unwrap_or_default();
                    joined.entry(first).or_default().push((word, class));
                    continue;
                }
                let (first, rest) = word.split_once('_').unwrap_or((word, ""));
                let entries = spaced.entry(first).or_default();
                let same = entries.iter_mut().find(|one| one.class == class && one.rest == rest);
                match same {
                    Some(entry) => entry.languages |= 1 << at,
                    None => entries.push(Entry { class, languages: 1 << at, rest }),
                }
            }
        }
    }
    Lexicon { spaced, joined }
});

/// What the lexicon knows of a sentence.
#[derive(Debug, Default)]
pub(super) struct Reading {
    /// The classes of each word, in order.
    pub(super) words: Vec<ClassSet>,
    /// The classes of all words.
    pub(super) all: ClassSet,
    /// The languages that most function words belong to, as a set of bits; all languages if there is none.
    pub(super) languages: u32,
}

/// Looks the lower-case words of a sentence up. A word means only what it means in the sentence's own language.
pub(super) fn read_words(words: &[&str], sentence: &str) -> Reading {
    let lexicon = &*LEXICON;
    let entries: Vec<&[Entry]> =
        words.iter().map(|word| lexicon.spaced.get(word).map_or(&[][..], Vec::as_slice)).collect();
    let languages = likely_languages(&entries);
    let mut reading =
        Reading { words: Vec::with_capacity(words.len()), languages, ..Reading::default() };
    for (at, entries) in entries.into_iter().enumerate() {
        let mut classes = ClassSet::default();
        for entry in entries.iter().filter(|entry| entry.languages & languages != 0) {
            if entry.rest.is_empty() || follows(&words[at + 1..], entry.rest) {
                classes = classes.with(entry.class);
            }
        }
        reading.all = reading.all.join(classes);
        reading.words.push(classes);
    }
    if sentence.chars().any(is_joined_script) {
        let whole = sentence.trim_matches(|char: char| !char.is_alphanumeric());
        for (at, char) in whole.char_indices() {
            for (word, class) in lexicon.joined.get(&char).into_iter().flatten() {
                let is_there = whole[at..].starts_with(word.as_str());
                // A command begins or ends its sentence.
                let is_end = at == 0 || at + word.len() == whole.len();
                if is_there && (is_end || *class != WordClass::Command) {
                    reading.all = reading.all.with(*class);
                }
            }
        }
    }
    reading
}

/// Whether a lower-case word is a unit or a month or a day in any language.
pub(super) fn is_unit(word: &str) -> bool {
    has_class(word, WordClass::Unit)
        || is_date(word)
        || word.starts_with([
            '月', '日', '号', '點', '点', '時', '时', '年', '元', '円', '分', '秒', '개', '번',
            '월', '일', '시', '원',
        ])
}

/// Whether a lower-case word is a month or a day in any language.
pub(super) fn is_date(word: &str) -> bool {
    has_class(word, WordClass::Date)
}

fn has_class(word: &str, class: WordClass) -> bool {
    let entries = LEXICON.spaced.get(word);
    entries.is_some_and(|all| all.iter().any(|one| one.class == class && one.rest.is_empty()))
}

/// Returns the languages with the most words of a sentence, function words first.
fn likely_languages(entries: &[&[Entry]]) -> u32 {
    let mut counts = [0_u32; u32::BITS as usize];
    for entry in entries.iter().copied().flatten().filter(|entry| entry.rest.is_empty()) {
        let weight = if entry.class == WordClass::Function { 3 } else { 1 };
        let mut languages = entry.languages;
        while languages != 0 {
            counts[languages.trailing_zeros() as usize] += weight;
            languages &= languages - 1;
        }
    }
    let most = counts.iter().copied().max().unwrap_or_default();
    if most == 0 {
        return u32::MAX;
    }
    // Short sentences hardly tell related languages apart.
    let enough = if most > 6 { most - 2 } else { most.div_ceil(2) };
    let likely = |(at, count): (usize, &u32)| if *count >= enough { 1 << at } else { 0 };
    counts.iter().enumerate().map(likely).fold(0, |all, one| all | one)
}

fn follows(words: &[&str], rest: &str) -> bool {
    let mut words = words.iter();
    rest.split('_').all(|expected| words.next() == Some(&expected))
}

/// Whether nothing separates the words of a character's script, or endings join them.
pub(crate) const fn is_joined_script(char: char) -> bool {
    matches!(char,
        '\u{0E00}'..='\u{0EFF}' | '\u{1000}'..='\u{109F}' | '\u{1100}'..='\u{11FF}' | '\u{1780}'..='\u{17FF}'
        | '\u{3040}'..='\u{30FF}' | '\u{3130}'..='\u{318F}' | '\u{3400}'..='\u{4DBF}' | '\u{4E00}'..='\u{9FFF}'
        | '\u{AC00}'..='\u{D7AF}' | '\u{F900}'..='\u{FAFF}' | '\u{20000}'..='\u{3FFFF}')
}

/// Whether a character of a joined script has no meaning of its own.
pub(super) fn is_function_char(char: char) -> bool {
    const CHARS: &str = "的了在和与就也都还很把被给对我你他她它们这那个是有为请吧啊はがをにのでともへやかねよだですますするしたて은는이가을를에의와과도로";
    CHARS.contains(char)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classes(sentence: &str) -> ClassSet {
        let words: Vec<&str> = sentence.split_whitespace().collect();
        read_words(&words, sentence).all
    }

    #[test]
    fn rules_are_recognized_in_many_languages() {
        let check = |sentence: &str| {
            assert!(classes(sentence).has(WordClass::Rule), "{sentence}");
        };
        check("never push to the main branch");
        check("do not touch the vendored code");
        check("die migrationen müssen vorher getestet werden");
        check("il faut toujours valider les entrées");
        check("los secretos nunca van en el repositorio");
        check("le password non vanno mai nei log, deve restare così");
        check("os testes devem passar antes do merge");
        check("de tests moeten altijd slagen");
        check("hasła muszą być zawsze szyfrowane");
        check("никогда не удаляй старые миграции");
        check("bu dosyayı asla değiştirme");
        check("يجب أن تكون الواجهة بالعربية");
        check("सभी उत्तर हमेशा हिंदी में दो");
        check("所有接口必须返回中文错误信息");
        check("コミットメッセージは必ず日本語で書く");
        check("모든 답변은 반드시 한국어로 작성");
        check("luôn kiểm tra dữ liệu đầu vào");
        check("jangan ubah berkas konfigurasi ini");
    }

    #[test]
    fn words_mean_what_they_mean_in_their_language() {
        // `nie` is "never" in German and "not" in Polish.
        assert!(classes("wir committen nie auf den hauptzweig").has(WordClass::Rule));
        assert!(!classes("to nie jest ten sam plik i nie wiem dlaczego").has(WordClass::Rule));
        assert!(!classes("the weather was nice today").has(WordClass::Rule));
    }
}
