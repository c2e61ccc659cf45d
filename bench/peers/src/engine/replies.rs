//! What a mock engine writes, in the shape of vLLM behind uvicorn.

use crate::content;
use crate::net;

/// `name` is a whole field line, or nothing.
pub fn stream_head(name: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\ndate: Fri, 20 Nov 2026 15:13:49 GMT\r\nserver: uvicorn\r\n{name}\
         content-type: text/event-stream; charset=utf-8\r\nvary: Origin\r\n\
         transfer-encoding: chunked\r\n\r\n"
    )
}

/// What a draining vLLM answers to every new request.
pub const DRAINING: &str = "{\"error\":{\"message\":\"cannot schedule new futures after shutdown\",\
                            \"type\":\"InternalServerError\",\"param\":null,\"code\":500}}";

pub const MODELS: &str = "{\"object\":\"list\",\"data\":[{\"id\":\"tiny\",\"object\":\"model\",\"created\":1795187630,\
                      \"owned_by\":\"vllm\",\"root\":\"tiny\",\"parent\":null,\"max_model_len\":1048576}]}";

pub fn metrics(running: usize) -> String {
    let labels = "{engine=\"0\",model_name=\"tiny\"}";
    format!(
        "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{labels} {running}.0\n\
         # TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{labels} 0.0\n\
         # TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{labels} 0.0\n\
         # TYPE vllm:prefix_cache_queries_total counter\nvllm:prefix_cache_queries_total{labels} 0.0\n\
         # TYPE vllm:prefix_cache_hits_total counter\nvllm:prefix_cache_hits_total{labels} 0.0\n\
         # TYPE vllm:cache_config_info gauge\n\
         vllm:cache_config_info{{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"65536\"}} 1.0\n"
    )
}

pub fn chunk(digest: u64, index: u32, tokens: u32) -> Vec<u8> {
    let mut event = Vec::with_capacity(288);
    content::push_event(&mut event, digest, index, tokens, net::clock_us());
    let mut bytes = format!("{:x}\r\n", event.len()).into_bytes();
    bytes.append(&mut event);
    bytes.extend_from_slice(b"\r\n");
    bytes
}

pub fn json(status: u16, name: &str, body: &[u8]) -> Vec<u8> {
    reply(status, name, "application/json", body)
}

pub fn reply(status: u16, name: &str, kind: &str, body: &[u8]) -> Vec<u8> {
    let reason = match status {
        200 => "OK",
        404 => "Not Found",
        _ => "Internal Server Error",
    };
    let mut bytes = format!(
        "HTTP/1.1 {status} {reason}\r\ndate: Fri, 20 Nov 2026 15:13:49 GMT\r\nserver: uvicorn\r\n{name}\
         content-length: {}\r\ncontent-type: {kind}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}
