//! Contexts that are larger than a frame: the error names the build and its size, and the build is read in parts.

use serde_json::{Value, json};

use crate::harness::{Wire, array, start};

/// Reads the JSON of a build in parts; calls `between` after the first one.
fn read_parts(
    wire: &mut Wire,
    params: &Value,
    mut between: impl FnMut(&mut Wire),
) -> (Value, usize) {
    let mut params = params.clone();
    let (mut text, mut n_parts) = (String::new(), 0);
    loop {
        let part = wire.ok("context.getBuild", params.clone());
        text.push_str(part["data"].as_str().unwrap());
        n_parts += 1;
        if n_parts == 1 {
            between(wire);
        }
        match part.get("nextCursor") {
            Some(next) => params["cursor"] = next.clone(),
            None => {
                assert_eq!(
                    (&part["done"], &part["total"]),
                    (&json!(text.len()), &json!(text.len()))
                );
                return (serde_json::from_str(&text).unwrap(), n_parts);
            }
        }
    }
}

#[test]
fn context_with_images_that_exceed_a_frame_is_read_in_parts() {
    let (sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({ "contextSize": 32768 }));
    let images = ["A", "B"].map(|byte| byte.repeat(17 << 19));
    for data in &images {
        let parts = json!([
            { "type": "text", "text": "What is this?" },
            { "type": "image", "mimeType": "image/png", "data": data },
        ]);
        wire.ok(
            "session.record",
            json!({ "sessionId": session, "message": { "role": "user", "parts": parts } }),
        );
        wire.record(&session, "assistant", "A picture.");
    }
    let shown = |build: &Value| -> Vec<String> {
        let messages =
            array(&build["messages"]).iter().flat_map(|message| message["images"].as_array());
        messages.flatten().map(|image| image.as_str().unwrap().to_owned()).collect()
    };

    let params = json!({ "sessionId": session });
    let error = wire.refused("context.build", params.clone(), "tooLarge");
    let (limit, size) =
        (error["data"]["limit"].as_u64().unwrap(), error["data"]["sizeBytes"].as_u64().unwrap());
    assert!(limit < 16 << 20 && size > 17 << 20, "{error}");
    assert!(error["message"].as_str().unwrap().contains("context.getBuild"), "{error}");
    let of_build = json!({ "sessionId": session, "buildId": error["data"]["buildId"] });
    // Another build in between changes neither the text nor its offsets.
    let (built, n_parts) = read_parts(&mut wire, &of_build, |wire| {
        wire.record(&session, "user", "And now?");
        wire.refused("context.build", params.clone(), "tooLarge");
    });
    assert_eq!(n_parts, 2);
    assert_eq!(built["buildId"], of_build["buildId"]);
    assert_eq!(array(&built["messages"]).len(), 4);
    assert!(shown(&built) == images, "every image is whole");

    let unknown = json!({ "sessionId": session, "buildId": "nope" });
    wire.refused("context.getBuild", unknown, "invalidParams");
    let mut beyond = of_build;
    beyond["cursor"] = json!("1099511627776");
    wire.refused("context.getBuild", beyond, "invalidParams");

    // The client reads the parts by itself.
    let printed = sandbox.ctl(["context", "inspect", &session, "--json"]);
    let inspected: Value = serde_json::from_str(&printed.stdout).unwrap();
    assert!(shown(&inspected["build"]) == images);
    let n_messages = array(&inspected["build"]["messages"]).len();
    assert_eq!((n_messages, array(&inspected["messageTokens"]).len()), (5, 5));
    assert_eq!(array(&inspected["items"]).len(), 5, "the items explain the context");
}

#[test]
fn small_build_is_read_in_one_part_and_is_the_same_as_its_result() {
    let (_sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({}));
    wire.record(&session, "user", "hello");
    for compact in ["never", "auto"] {
        let built = wire.ok("context.build", json!({ "sessionId": session, "compact": compact }));
        wire.record(&session, "assistant", "hi");
        let params = json!({ "sessionId": session, "buildId": built["buildId"] });
        let (read, n_parts) = read_parts(&mut wire, &params, |_| ());
        assert_eq!((read, n_parts), (built, 1));
        wire.record(&session, "user", "more");
    }
}
