"""The sentences of letters, in English and German. Texts only; `erasure.rendering.letter` decides which are said.

Guarantees: both languages have every sentence and the same placeholders (a test compares them). They promise nothing
that the certificate does not state.
"""

from __future__ import annotations

from collections.abc import Mapping

LANGUAGES = ("en", "de")

_EN = {
    "greeting": "Dear Sir or Madam,",
    "farewell": "Yours sincerely,",
    "enclosures": "Enclosed",
    "enclosure_certificate": "certificate {version}, {request}",
    "enclosure_export": "copy of the data, {request}",
    "label_date": "Date",
    "label_reference": "Reference",
    "label_received": "Received",
    "label_due": "Answer due",
    "label_dpo": "Data protection officer",
    "to": "To the person who wrote to us as",
    "subject_acknowledgement": "We have received your request",
    "subject_extension": "We need more time for your request",
    "subject_refusal": "We cannot do what you asked",
    "subject_no_match": "We know nobody by the names you gave",
    "subject_restriction_lifting": "The restriction of your data is about to end",
    "subject_answer_erasure": "Your data: what we erased, and how you can check it",
    "subject_answer": "Our answer to your request",
    "asked": "On {received} we received your request: {right}.",
    "only_data_classes": "It was limited to these classes of data: {classes}.",
    "only_conversation": "It was limited to one conversation.",
    "only_memory": "It was limited to one thing we had remembered, and what was made of it.",
    "right_erasure": "erasure of your data",
    "right_access": "access to your data",
    "right_portability": "a copy of your data in a portable form",
    "right_rectification": "correction of your data",
    "right_restriction": "restriction of the processing of your data",
    "right_objection": "objection to the processing of your data",
    "ack_due": "You get our answer by {due} at the latest.",
    "ack_identity": "Before we act we make sure that it is really you who asks. We ask only for what that takes.",
    "ack_nothing": "You need not do anything until then.",
    "ext_until": "We cannot answer by {due}. By law the time can be extended once; you get our answer by "
    "{extended} at the latest.",
    "ext_reason": "Reason: {reason}",
    "ref_ground": "We cannot do what you asked, on this ground: {ground}.",
    "ground_identity_not_verified": "we could not establish that the request comes from the person it is about",
    "ground_manifestly_unfounded": "the request is manifestly unfounded",
    "ground_excessive": "the request is excessive",
    "ground_freedom_of_expression": "the data are needed for the freedom of expression and information",
    "ground_legal_obligation": "a law obliges us to keep the data",
    "ground_public_health": "the data are needed in the public interest in the area of public health",
    "ground_archiving_research": "the data are needed for archiving or research in the public interest",
    "ground_legal_claims": "the data are needed to establish, exercise or defend legal claims",
    "ground_outside_jurisdiction": "the law on which the request rests does not apply to it",
    "ground_exempt": "an exemption of the law applies",
    "ground_compelling_grounds": "we have compelling legitimate grounds that override your interests",
    "nom_none": "On {day} we looked for you under these names, and know nobody by them:",
    "nom_where": "We looked in the systems {stores} and in the classes of data {classes}.",
    "nom_more": "If you were known to us by another name, address or number, tell us and we look again.",
    "nom_no_certificate": "This letter is no certificate of an erasure: there was nothing to erase.",
    "lift": "At your request we restricted the processing of your data. We intend to end that restriction; you "
    "are told before it ends, as the law wants it.",
    "ans_done": "We have done what you asked.",
    "ans_export": "The copy of your data is enclosed, with a list of what it holds and of where each part comes from.",
    "ans_completed": "We found {count} copies of your data in {stores} of our systems. All of them are gone. "
    "After the erasure another part of our systems looked for each of them again and found none.",
    "ans_retained": "We found {count} copies of your data in {stores} of our systems. {gone} of them are gone; "
    "another part of our systems looked for each and found none. {kept} we have to keep for now, see below.",
    "ans_exceptions": "We found {count} copies of your data in {stores} of our systems. {gone} of them are gone "
    "and were looked for again. {failed} could not be erased, see below.",
    "ans_interim": "In a while we look for all of it once more; the final certificate follows on or after {final}.",
    "head_stays": "What we keep, and why",
    "stays_line": "{data_class}: {ground} (until {until})",
    "stays_no_end": "no date yet",
    "stays_restricted": "We use these data for nothing else.",
    "head_failed": "What could not be erased",
    "failed_line": "{data_class} in {store}",
    "head_residual": "What may remain for a while",
    "residual": "Copies made for safety can hold data until they are overwritten:",
    "residual_until": "{what} until {until}",
    "residual_unknown": "{what} (no date is known)",
    "what_backup_retention": "backups",
    "what_log_retention": "logs",
    "what_cache_ttl": "caches",
    "what_provider_retention": "provider's own copies",
    "what_sealed_bytes": "bytes that no key opens any more",
    "what_keys": "backups of destroyed keys",
    "head_opening": "The certificate is about you: how to see that",
    "opening": "The certificate names nobody. It holds a number that can be computed only from your name and a "
    "secret (the salt), and only this letter has that secret. Keep it to yourself as long as nobody is to know "
    "that the certificate is about you.",
    "opening_name": "Your name",
    "opening_salt": "Secret (salt)",
    "opening_number": "Number",
    "opening_how": "On any computer with a Unix shell this prints the number, which must stand in the certificate:",
    "opening_tool": "Or: muniment verify-report CERTIFICATE --key KEY --letter THIS-LETTER",
    "head_rights": "Your rights",
    "rights_gdpr": "If you think that we are wrong you can complain to a supervisory authority{body}, and you "
    "can go to court (GDPR Art. 77 and 79).",
    "rights_ccpa": "If you think that we are wrong you can turn to the California Privacy Protection Agency or "
    "to the Attorney General{body}.",
    "rights_contact": "You can reach us at: {contact}.",
}
_DE = {
    "greeting": "Sehr geehrte Damen und Herren,",
    "farewell": "Mit freundlichen Grüßen",
    "enclosures": "Anlagen",
    "enclosure_certificate": "Bescheinigung {version}, {request}",
    "enclosure_export": "Kopie der Daten, {request}",
    "label_date": "Datum",
    "label_reference": "Zeichen",
    "label_received": "Eingang",
    "label_due": "Antwort bis",
    "label_dpo": "Datenschutz",
    "to": "An die Person, die uns geschrieben hat als",
    "subject_acknowledgement": "Ihr Antrag ist bei uns eingegangen",
    "subject_extension": "Wir brauchen für Ihren Antrag mehr Zeit",
    "subject_refusal": "Wir können Ihrem Antrag nicht entsprechen",
    "subject_no_match": "Unter den genannten Namen kennen wir niemanden",
    "subject_restriction_lifting": "Die Einschränkung der Verarbeitung Ihrer Daten endet demnächst",
    "subject_answer_erasure": "Ihre Daten: was wir gelöscht haben und wie Sie es nachprüfen können",
    "subject_answer": "Unsere Antwort auf Ihren Antrag",
    "asked": "Am {received} ist Ihr Antrag bei uns eingegangen: {right}.",
    "only_data_classes": "Er war auf diese Datenarten beschränkt: {classes}.",
    "only_conversation": "Er war auf ein Gespräch beschränkt.",
    "only_memory": "Er war auf etwas beschränkt, das wir uns gemerkt hatten, und auf das daraus Gemachte.",
    "right_erasure": "Löschung Ihrer Daten",
    "right_access": "Auskunft über Ihre Daten",
    "right_portability": "eine Kopie Ihrer Daten in übertragbarer Form",
    "right_rectification": "Berichtigung Ihrer Daten",
    "right_restriction": "Einschränkung der Verarbeitung Ihrer Daten",
    "right_objection": "Widerspruch gegen die Verarbeitung Ihrer Daten",
    "ack_due": "Sie erhalten unsere Antwort spätestens am {due}.",
    "ack_identity": "Bevor wir handeln, vergewissern wir uns, dass der Antrag wirklich von Ihnen kommt. Wir "
    "fragen nur nach dem, was dafür nötig ist.",
    "ack_nothing": "Bis dahin müssen Sie nichts tun.",
    "ext_until": "Bis zum {due} können wir nicht antworten. Das Gesetz erlaubt, die Frist einmal zu verlängern; "
    "Sie erhalten unsere Antwort spätestens am {extended}.",
    "ext_reason": "Grund: {reason}",
    "ref_ground": "Wir können Ihrem Antrag aus folgendem Grund nicht entsprechen: {ground}.",
    "ground_identity_not_verified": "wir konnten nicht feststellen, dass der Antrag von der Person kommt, um die "
    "es geht",
    "ground_manifestly_unfounded": "der Antrag ist offenkundig unbegründet",
    "ground_excessive": "der Antrag ist exzessiv",
    "ground_freedom_of_expression": "die Daten sind zur Ausübung der Meinungs- und Informationsfreiheit erforderlich",
    "ground_legal_obligation": "ein Gesetz verpflichtet uns, die Daten aufzubewahren",
    "ground_public_health": "die Daten sind im öffentlichen Interesse der öffentlichen Gesundheit erforderlich",
    "ground_archiving_research": "die Daten sind für Archivzwecke oder Forschung im öffentlichen Interesse "
    "erforderlich",
    "ground_legal_claims": "die Daten sind zur Geltendmachung, Ausübung oder Verteidigung von Rechtsansprüchen "
    "erforderlich",
    "ground_outside_jurisdiction": "das Gesetz, auf das sich der Antrag stützt, gilt hier nicht",
    "ground_exempt": "das Gesetz sieht eine Ausnahme vor",
    "ground_compelling_grounds": "wir haben zwingende schutzwürdige Gründe, die Ihre Interessen überwiegen",
    "nom_none": "Am {day} haben wir Sie unter diesen Namen gesucht und kennen darunter niemanden:",
    "nom_where": "Gesucht haben wir in den Systemen {stores} und in den Datenarten {classes}.",
    "nom_more": "Falls Sie uns unter einem anderen Namen, einer anderen Adresse oder Nummer bekannt waren, "
    "nennen Sie uns diese, und wir suchen noch einmal.",
    "nom_no_certificate": "Dieses Schreiben bescheinigt keine Löschung: Es gab nichts zu löschen.",
    "lift": "Auf Ihren Antrag haben wir die Verarbeitung Ihrer Daten eingeschränkt. Wir beabsichtigen, diese "
    "Einschränkung aufzuheben; das Gesetz verlangt, Sie vorher zu unterrichten.",
    "ans_done": "Wir haben getan, worum Sie uns gebeten haben.",
    "ans_export": "Die Kopie Ihrer Daten liegt bei, mit einem Verzeichnis ihres Inhalts und der Herkunft jedes Teils.",
    "ans_completed": "Wir haben {count} Kopien Ihrer Daten in {stores} unserer Systeme gefunden. Sie sind alle "
    "weg. Nach der Löschung hat ein anderer Teil unserer Systeme jede noch einmal gesucht und keine gefunden.",
    "ans_retained": "Wir haben {count} Kopien Ihrer Daten in {stores} unserer Systeme gefunden. {gone} davon "
    "sind weg; ein anderer Teil unserer Systeme hat jede noch einmal gesucht und keine gefunden. {kept} müssen "
    "wir vorerst behalten, siehe unten.",
    "ans_exceptions": "Wir haben {count} Kopien Ihrer Daten in {stores} unserer Systeme gefunden. {gone} davon "
    "sind weg und wurden noch einmal gesucht. {failed} ließen sich nicht löschen, siehe unten.",
    "ans_interim": "Nach einer Wartezeit suchen wir alles noch einmal; die endgültige Bescheinigung folgt ab dem "
    "{final}.",
    "head_stays": "Was wir behalten und warum",
    "stays_line": "{data_class}: {ground} (bis {until})",
    "stays_no_end": "noch ohne Datum",
    "stays_restricted": "Wir verwenden diese Daten zu nichts anderem.",
    "head_failed": "Was sich nicht löschen ließ",
    "failed_line": "{data_class} in {store}",
    "head_residual": "Was noch eine Weile bleiben kann",
    "residual": "Sicherungskopien können Daten enthalten, bis sie überschrieben sind:",
    "residual_until": "{what} bis {until}",
    "residual_unknown": "{what} (kein Datum bekannt)",
    "what_backup_retention": "Sicherungen",
    "what_log_retention": "Protokolle",
    "what_cache_ttl": "Zwischenspeicher",
    "what_provider_retention": "Kopien beim Anbieter",
    "what_sealed_bytes": "Bytes, die kein Schlüssel mehr öffnet",
    "what_keys": "Sicherungen vernichteter Schlüssel",
    "head_opening": "Die Bescheinigung handelt von Ihnen: wie Sie das sehen",
    "opening": "Die Bescheinigung nennt niemanden. Sie enthält eine Zahl, die sich nur aus Ihrem Namen und einem "
    "Geheimnis (dem Salt) berechnen lässt, und nur dieses Schreiben enthält das Geheimnis. Behalten Sie es für "
    "sich, solange niemand wissen soll, dass die Bescheinigung von Ihnen handelt.",
    "opening_name": "Ihr Name",
    "opening_salt": "Geheimnis (Salt)",
    "opening_number": "Zahl",
    "opening_how": "Auf jedem Rechner mit Unix-Shell gibt dies die Zahl aus, die in der Bescheinigung stehen muss:",
    "opening_tool": "Oder: muniment verify-report BESCHEINIGUNG --key SCHLÜSSEL --letter DIESES-SCHREIBEN",
    "head_rights": "Ihre Rechte",
    "rights_gdpr": "Wenn Sie meinen, dass wir uns irren, können Sie sich bei einer Aufsichtsbehörde "
    "beschweren{body} und die Gerichte anrufen (Art. 77 und 79 DSGVO).",
    "rights_ccpa": "Wenn Sie meinen, dass wir uns irren, können Sie sich an die California Privacy Protection "
    "Agency oder den Attorney General wenden{body}.",
    "rights_contact": "Sie erreichen uns unter: {contact}.",
}
WORDS: Mapping[str, Mapping[str, str]] = {"en": _EN, "de": _DE}
