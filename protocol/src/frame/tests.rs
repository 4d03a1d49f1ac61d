//! Tables of streams with their frames, and properties of streams that are split into reads.

use proptest::prelude::*;
use serde_json::json;

use super::*;

const LIMIT: usize = 64;

/// Decodes `pieces` one after another and returns every frame, including that of the end of the stream.
fn decode<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Frame>, Option<FrameError>) {
    let mut decoder = Decoder::new(LIMIT);
    let mut frames = Vec::new();
    for piece in pieces {
        decoder.buffer().extend_from_slice(piece);
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            }
        }
        assert!(decoder.buffer.len() <= LIMIT + MAX_HEADER_BYTES + piece.len(), "bounded memory");
    }
    frames.extend(decoder.finish());
    (frames, None)
}

fn message(text: &str) -> Frame {
    Frame::Message(text.as_bytes().to_vec())
}

fn oversized(prefix: &str) -> Frame {
    Frame::Oversized { prefix: prefix.as_bytes().to_vec() }
}

#[test]
fn streams_are_decoded_into_frames() {
    let check = |stream: &str, frames: &[Frame], error: Option<FrameError>| {
        assert_eq!(decode([stream.as_bytes()]), (frames.to_vec(), error), "{stream:?}");
    };
    let long = format!("{{{}}}", "x".repeat(LIMIT));
    let fits = format!("{{{}}}", "x".repeat(LIMIT - 2));
    check("", &[], None);
    check("\r\n \n", &[], None);
    check("{}\n[1]\n", &[message("{}"), message("[1]")], None);
    check(
        "\n\n  {\"a\":1} \r\n\r\nnot json\r\n",
        &[message("{\"a\":1}"), message("not json")],
        None,
    );
    check("{}\n{\"last\":1}", &[message("{}"), message("{\"last\":1}")], None);
    check("{}\n  ", &[message("{}")], None);
    check(&format!("{long}\n{{}}\n"), &[oversized(&long), message("{}")], None);
    check(&format!("{fits}\n{{}}\n"), &[message(&fits), message("{}")], None);
    check(&long, &[oversized(&long)], None);
    check("Content-Length: 2\r\n\r\n{}", &[message("{}")], None);
    check(
        "content-length:2\nContent-Type: x\n\n{}\r\nContent-Length: 3\r\n\r\n[1]",
        &[message("{}"), message("[1]")],
        None,
    );
    check("Content-Length: 0\r\n\r\nContent-Length: 2\r\n\r\n{}", &[message("{}")], None);
    check("Content-Length: 5\r\n\r\n{}", &[], None);
    check(
        &format!("Content-Length: {}\r\n\r\n{long}Content-Length: 2\r\n\r\n{{}}", long.len()),
        &[oversized(&long), message("{}")],
        None,
    );
    check("GET / HTTP/1.1\r\n", &[], Some(FrameError::Foreign { first: b'G' }));
    check("42\n", &[], Some(FrameError::Foreign { first: b'4' }));
    check("Content-Length: x\r\n\r\n", &[], Some(FrameError::NoLength));
    check("Content-Length: -1\r\n\r\n", &[], Some(FrameError::NoLength));
    check("Content-Type: x\r\n\r\n{}", &[], Some(FrameError::NoLength));
    check("CONNECT x\r\n\r\n", &[], Some(FrameError::NoLength));
    check(&"C".repeat(MAX_HEADER_BYTES + 1), &[], Some(FrameError::LongHeaders));
    check("Content-Length: 99999999999999999999\r\n\r\n", &[], Some(FrameError::NoLength));
}

#[test]
fn decoder_that_failed_stays_failed() {
    let mut decoder = Decoder::new(LIMIT);
    decoder.buffer().extend_from_slice(b"GET /\n");
    assert!(decoder.next_frame().is_err());
    decoder.buffer().extend_from_slice(b"{}\n");
    assert!(decoder.next_frame().is_err());
    assert_eq!(decoder.finish(), None);
}

#[test]
fn oversized_frame_is_skipped_in_bounded_memory() {
    let mut decoder = Decoder::new(1 << 20);
    let piece = vec![b'x'; 1 << 18];
    decoder.buffer().push(b'{');
    for _ in 0..64 {
        decoder.buffer().extend_from_slice(&piece);
        assert_eq!(decoder.next_frame(), Ok(None));
        assert!(decoder.buffer.capacity() <= 4 << 20);
    }
    decoder.buffer().extend_from_slice(b"\n{}\n");
    let Ok(Some(Frame::Oversized { prefix })) = decoder.next_frame() else { panic!("oversized") };
    assert_eq!(prefix.len(), OVERSIZED_PREFIX_BYTES);
    assert_eq!(decoder.next_frame(), Ok(Some(message("{}"))));
    assert_eq!(decoder.next_frame(), Ok(None));
    assert!(decoder.buffer.capacity() <= KEEP_BUFFER_BYTES);
}

#[test]
fn line_ends_between_tokens_become_spaces() {
    let mut out = Vec::new();
    encode(Framing::Lines, b"{\n\"a\":1}", &mut out);
    assert_eq!(out, b"{ \"a\":1}\n");
}

fn split<'a>(stream: &'a [u8], at: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut splits: Vec<usize> = at.iter().map(|at| at.index(stream.len() + 1)).collect();
    splits.extend([0, stream.len()]);
    splits.sort_unstable();
    splits.windows(2).map(|pair| &stream[pair[0]..pair[1]]).collect()
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        "\\{[a-z\" ]{0,80}\\}".prop_map(String::into_bytes),
        "[ \t]{0,4}".prop_map(String::into_bytes),
        prop::collection::vec(
            any::<u8>().prop_filter("no line end", |byte| *byte != b'\n'),
            1..100
        ),
    ]
}

proptest! {
    #[test]
    fn frames_do_not_depend_on_how_the_stream_is_split(
        headers in any::<bool>(),
        bodies in prop::collection::vec(body(), 0..8),
        junk in prop::collection::vec(any::<u8>(), 0..8),
        at in prop::collection::vec(any::<prop::sample::Index>(), 0..24),
    ) {
        let mut stream = Vec::new();
        let framing = if headers { Framing::Headers } else { Framing::Lines };
        encode(framing, b"{}", &mut stream);
        bodies.iter().for_each(|body| encode(framing, body, &mut stream));
        stream.extend(junk);
        let whole = decode([stream.as_slice()]);
        prop_assert_eq!(decode(split(&stream, &at)), whole);
    }

    #[test]
    fn encoded_frames_are_decoded_again(headers in any::<bool>(), bodies in prop::collection::vec("\\{[ -~é漢]{0,20}\\}", 0..8)) {
        let framing = if headers { Framing::Headers } else { Framing::Lines };
        let mut stream = Vec::new();
        bodies.iter().for_each(|body| encode(framing, body.as_bytes(), &mut stream));
        let (frames, error) = decode([stream.as_slice()]);
        prop_assert_eq!(error, None);
        let expect: Vec<Frame> = bodies.iter().map(|body| {
            if body.len() > LIMIT { Frame::Oversized { prefix: body.as_bytes().to_vec() } } else { message(body) }
        }).collect();
        prop_assert_eq!(frames, expect);
    }
}

#[test]
fn id_is_found_only_if_it_is_complete() {
    let check = |prefix: &str, expect: Option<Value>| {
        assert_eq!(partial_id(prefix.as_bytes()), expect, "{prefix}");
    };
    check(r#"{"jsonrpc":"2.0","id":17,"method":"x","params":{"a":"#, Some(json!(17)));
    check(r#" { "id" : "a\"b" , "#, Some(json!("a\"b")));
    check(r#"{"params":{"id":1,"x":["]}",{}]},"id":2,"#, Some(json!(2)));
    check(r#"{"method":"a\\","id":-1.5}"#, Some(json!(-1.5)));
    check(r#"{"id":17"#, None);
    check(r#"{"id":"17"#, None);
    check(r#"{"id":"17\"#, None);
    check(r#"{"id":null,"id":3,"#, None);
    check(r#"{"id":{"a":1},"#, None);
    check(r#"{"params":{"id":1"#, None);
    check(r#"[{"id":1}"#, None);
    check("", None);
    check(r#"{"a":]]]]"#, None);
}

#[test]
fn skipped_frame_is_returned_as_oversized_at_its_end() {
    for stream in [
        "{\"id\":1, and its end\n{}\n",
        "Content-Length: 20\r\n\r\n{\"id\":1, and its endContent-Length: 2\r\n\r\n{}",
    ] {
        let cut = stream.find("and").expect("a cut");
        let mut decoder = Decoder::new(LIMIT);
        decoder.buffer().extend_from_slice(&stream.as_bytes()[..cut]);
        assert_eq!(decoder.next_frame(), Ok(None));
        assert_eq!(decoder.unfinished_bytes(), 9);
        decoder.skip_unfinished();
        assert_eq!(decoder.unfinished_bytes(), 0);
        decoder.buffer().extend_from_slice(&stream.as_bytes()[cut..]);
        let skipped = decoder.next_frame().expect("decodes");
        assert_eq!(skipped, Some(oversized("{\"id\":1, and its end")), "{stream:?}");
        assert_eq!(decoder.next_frame(), Ok(Some(message("{}"))), "{stream:?}");
        decoder.skip_unfinished();
        decoder.buffer().extend_from_slice(b"{}\n");
    }
}
