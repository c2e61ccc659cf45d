//! Writes msgpack, from JSON and in every width, for what was not recorded.

use serde_json::Value;

/// JSON as msgpack, each value in its shortest form. `{"hex": "..."}` is bytes.
pub fn packed(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    put(value, &mut out);
    out
}

fn put(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.push(0xc0),
        Value::Bool(value) => out.push(0xc2 + u8::from(*value)),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => put_number(number, out),
            (None, Some(number)) => {
                out.push(0xd3);
                out.extend(number.to_be_bytes());
            }
            _ => {
                out.push(0xcb);
                out.extend(number.as_f64().unwrap().to_be_bytes());
            }
        },
        Value::String(text) => {
            match text.len() {
                short @ 0..32 => out.push(0xa0 + short as u8),
                length => out.extend([0xda, (length >> 8) as u8, length as u8]),
            }
            out.extend(text.bytes());
        }
        Value::Array(values) => {
            match values.len() {
                short @ 0..16 => out.push(0x90 + short as u8),
                length @ 16..65_536 => out.extend([0xdc, (length >> 8) as u8, length as u8]),
                length => {
                    out.push(0xdd);
                    out.extend((length as u32).to_be_bytes());
                }
            }
            values.iter().for_each(|value| put(value, out));
        }
        Value::Object(fields) => {
            if let Some(digits) = fields.get("hex").and_then(Value::as_str) {
                out.extend([0xc4, (digits.len() / 2) as u8]);
                let digits: Vec<u32> = digits.chars().map(|digit| digit.to_digit(16).unwrap()).collect();
                out.extend(digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8));
                return;
            }
            assert!(fields.len() < 16);
            out.push(0x80 + fields.len() as u8);
            for (name, value) in fields {
                put(&Value::String(name.clone()), out);
                put(value, out);
            }
        }
    }
}

fn put_number(number: u64, out: &mut Vec<u8>) {
    match number {
        0..128 => out.push(number as u8),
        128..256 => out.extend([0xcc, number as u8]),
        256..65_536 => {
            out.push(0xcd);
            out.extend((number as u16).to_be_bytes());
        }
        65_536..0x1_0000_0000 => {
            out.push(0xce);
            out.extend((number as u32).to_be_bytes());
        }
        _ => {
            out.push(0xcf);
            out.extend(number.to_be_bytes());
        }
    }
}
