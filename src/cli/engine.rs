//! `warmfront engine`: simulated vLLM engines on this machine.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use super::{note, runtime, say};
use crate::config::address;
use crate::engine::profile::Profile;
use crate::engine::pump::{Engine, Settings};
use crate::engine::request::Serving;
use crate::engine::server;

/// Run a simulated vLLM engine: vLLM's HTTP, a real block-level prefix cache, and steps that take
/// the time they would take on a GPU. The defaults describe an 8B model in FP8 on one NVIDIA L4.
#[derive(clap::Args, Debug)]
pub struct EngineArgs {
    /// Address to listen on; give it several times for several engines in one process.
    #[arg(long, value_name = "IP:PORT", value_parser = address, default_value = "127.0.0.1:9100")]
    listen: Vec<SocketAddr>,
    /// Model id to serve; give it several times for aliases.
    #[arg(long, value_name = "NAME", default_value = "llama-3.1-8b")]
    model: Vec<String>,
    /// Ranks behind each port, each with a cache of its own; a request names one in X-data-parallel-rank.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    data_parallel_size: u16,
    /// Simulated seconds to a real one.
    #[arg(long, value_name = "K", default_value_t = 1.0)]
    time_scale: f64,
    /// Tokens in a KV block.
    #[arg(long, value_name = "N", default_value_t = Profile::default().block_size)]
    block_size: u32,
    /// Tokens that the KV cache holds.
    #[arg(long, value_name = "N", default_value_t = Profile::default().kv_tokens)]
    kv_tokens: u32,
    /// Longest prompt plus output, in tokens [default: 16384, or --kv-tokens if less].
    #[arg(long, value_name = "N")]
    max_model_len: Option<u32>,
    /// Most sequences in a step.
    #[arg(long, value_name = "N", default_value_t = Profile::default().max_num_seqs)]
    max_num_seqs: usize,
    /// Most tokens in a step; longer prompts are computed in chunks.
    #[arg(long, value_name = "N", default_value_t = Profile::default().max_num_batched_tokens)]
    max_num_batched_tokens: u32,
    /// Most requests that may wait before more are refused with 503; 0 is no limit.
    #[arg(long, value_name = "N", default_value_t = 0)]
    max_num_queued_reqs: usize,
    /// Prompt tokens computed a second, beside the base cost of their steps.
    #[arg(long, value_name = "X", default_value_t = Profile::default().prefill_tokens_per_second)]
    prefill_tokens_per_second: f64,
    /// Cost of each pair of a prompt token and a token before it: makes long prompts dearer.
    #[arg(long, value_name = "NS", default_value_t = Profile::default().attention_pair_ns)]
    attention_pair_ns: f64,
    /// Base cost of a step: reading the weights.
    #[arg(long, value_name = "MS", default_value_t = Profile::default().decode_step_ms)]
    decode_step_ms: f64,
    /// Cost of each decoding sequence in a step.
    #[arg(long, value_name = "US", default_value_t = Profile::default().decode_sequence_us)]
    decode_sequence_us: f64,
    /// Cost of each KV token that a decoding sequence reads in a step.
    #[arg(long, value_name = "NS", default_value_t = Profile::default().decode_kv_ns)]
    decode_kv_ns: f64,
    /// Length of replies to requests without max_tokens.
    #[arg(long, value_name = "N", default_value_t = Settings::default().serving.output_tokens)]
    output_tokens: u32,
    /// Leave cached_tokens out of usage, as vLLM does without --enable-prompt-tokens-details.
    #[arg(long)]
    no_prompt_tokens_details: bool,
    /// Ask for this bearer token on /v1.
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// Send a comment after this many real seconds of silence in a stream; 0 sends none.
    #[arg(long, value_name = "S", default_value_t = 0.0)]
    sse_keep_alive_interval: f64,
    /// Close connections that are idle this many real seconds.
    #[arg(long, value_name = "S", default_value_t = 5.0)]
    keep_alive_timeout: f64,
}

impl EngineArgs {
    fn settings(&self) -> Result<Settings, String> {
        let profile = Profile {
            block_size: self.block_size,
            kv_tokens: self.kv_tokens,
            max_model_len: self.max_model_len.unwrap_or_else(|| self.default_model_len()),
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            max_num_queued_reqs: self.max_num_queued_reqs,
            prefill_tokens_per_second: self.prefill_tokens_per_second,
            attention_pair_ns: self.attention_pair_ns,
            decode_step_ms: self.decode_step_ms,
            decode_sequence_us: self.decode_sequence_us,
            decode_kv_ns: self.decode_kv_ns,
        };
        profile.check()?;
        if !(1e-3..=1e4).contains(&self.time_scale) {
            return Err("--time-scale must be between 0.001 and 10000".into());
        }
        let seconds = |value: f64, name: &str| {
            Duration::try_from_secs_f64(value).map_err(|_| format!("{name} is no number of seconds"))
        };
        Ok(Settings {
            profile,
            serving: Serving { models: self.model.clone(), output_tokens: self.output_tokens.max(1) },
            time_scale: self.time_scale,
            prompt_tokens_details: !self.no_prompt_tokens_details,
            api_key: self.api_key.clone(),
            sse_keep_alive: seconds(self.sse_keep_alive_interval, "--sse-keep-alive-interval")?,
            idle_timeout: seconds(self.keep_alive_timeout, "--keep-alive-timeout")?,
        })
    }

    fn default_model_len(&self) -> u32 {
        let whole_blocks = self.kv_tokens / self.block_size.max(1) * self.block_size;
        Profile::default().max_model_len.min(whole_blocks)
    }
}

/// Serves until SIGINT or SIGTERM.
pub fn run(args: EngineArgs) -> ExitCode {
    let settings = match args.settings() {
        Ok(settings) => settings,
        Err(what) => {
            note(&format!("warmfront engine: {what}\n"));
            return ExitCode::from(2);
        }
    };
    // One thread serves several engines: the work is small, and the rest of the machine is the
    // front's and its clients'.
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(error) => {
            note(&format!("warmfront engine: cannot start its runtime: {error}\n"));
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(serve(&args.listen, args.data_parallel_size, &settings)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            note(&format!("warmfront engine: {what}\n"));
            ExitCode::FAILURE
        }
    }
}

async fn serve(listen: &[SocketAddr], ranks: u16, settings: &Settings) -> Result<(), String> {
    for address in listen {
        let listener = tokio::net::TcpListener::bind(address)
            .await
            .map_err(|error| format!("cannot listen on {address}: {error}. Choose another with --listen."))?;
        let bound = listener.local_addr().unwrap_or(*address);
        say(&format!(
            "simulated engine on http://{bound} serves {} with {} KV tokens, time scale {}\n",
            settings.serving.models.join(", "),
            settings.profile.blocks() * settings.profile.block_size,
            settings.time_scale
        ));
        let ranks = (0..ranks).map(|_| Engine::new(settings.clone())).collect();
        tokio::spawn(server::serve_ranks(ranks, listener));
    }
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
        .map_err(|error| format!("cannot watch for SIGTERM: {error}"))?;
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}
