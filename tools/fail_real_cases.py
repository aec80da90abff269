# ruff: noqa: E501  a table
"""Ways in which the real SGLang server can be made to fail on a CPU, with what each is. Data of ``fail_real.py``.

``@MODEL@``, ``@PORT@``, ``@PORT2@`` and ``@RUN@`` stand for the copied checkpoint, two ports and the case's folder.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Kill:
    """``signal`` to the process whose title holds ``who``, ``delay`` seconds after the log matched ``after``."""

    who: str
    signal: str
    after: str
    delay: float = 0.0


@dataclass(frozen=True)
class Case:
    """One way. ``expect`` matches ``signature phase`` in full.

    ``files``: shell, in the copied checkpoint. ``args``, ``env``: of the server, in place of the usual ones. ``before``:
    shell that becomes the server. ``beside``: shell that runs meanwhile. ``then``: shell once it serves. ``hide``:
    modules that are missing, or ``name=code``. ``limits``: resource limits. ``tmpfs``: mounts of its own, with their options.
    ``nobody``: the server has no rights, and not even ``keep``, a file. ``limit``: seconds it gets.
    """

    name: str
    expect: str
    files: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    before: str = ""
    beside: str = ""
    then: str = ""
    hide: tuple[str, ...] = ()
    kill: Kill | None = None
    limits: dict[str, int] = field(default_factory=dict)
    tmpfs: dict[str, str] = field(default_factory=dict)
    nobody: bool = False
    keep: str = ""
    ranks: int = 1
    memory: int | None = None
    limit: float = 60.0


def _config(change: str) -> str:
    """Shell that changes config.json by a statement on ``c``."""
    return _json("config.json", change)


def _json(name: str, change: str) -> str:
    return (
        f"python3 - <<'PY'\nimport json\nc = json.load(open('{name}'))\n{change}\njson.dump(c, open('{name}', 'w'))\nPY"
    )


def _a(name: str, expect: str, args: str, **more: object) -> Case:
    return Case(name, expect, str(more.pop("files", "")), tuple(args.split()), **more)  # type: ignore[arg-type]


_POINTER = (
    "printf 'version https://git-lfs.github.com/spec/v1\\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e"
    "2393\\nsize 491520\\n'"
)
_SHARD = "model-00003-of-00006.safetensors"
_LOADED, _SERVES, _RANKS = r"Load weight begin", r"fired up and ready", r"Init parallel begin"
_DIED = "rank_killed|host_oom|native_crash|rank_died|process_killed"

CASES: tuple[Case, ...] = (
    # Signals
    *(
        _a(f"kill-{when}-{who}-{sig.lower()}", expect, "--tp-size 2" if who == "TP1" else "", ranks=2 if who == "TP1" else 1,
           before=":" if who == "TP1" and when == "serve" else "",  # forked ranks hang in their first forward
           kill=Kill({"TP1": "scheduler_TP1"}.get(who, who), sig, after, delay))
        for when, after, delay, who, sig, expect in (
            ("serve", _SERVES, 1.0, "detokenizer", "KILL", r"(rank_killed|host_oom) ready"),
            ("serve", _SERVES, 1.0, "detokenizer", "SEGV", r"native_crash ready"),
            ("serve", _SERVES, 1.0, "detokenizer", "TERM", r"(rank_died|stopped) ready"),
            ("serve", _SERVES, 1.0, "scheduler", "KILL", r"(rank_killed|host_oom) ready"),
            ("serve", _SERVES, 1.0, "scheduler", "SEGV", r"native_crash ready"),
            ("serve", _SERVES, 1.0, "scheduler", "ABRT", r"native_crash ready"),
            ("serve", _SERVES, 1.0, "scheduler", "BUS", r"bus_error ready"),
            ("serve", _SERVES, 1.0, "scheduler", "TERM", r"(rank_died|stopped) ready"),
            ("serve", _SERVES, 1.0, "TP1", "KILL", r"(rank_killed|host_oom|peer_lost) ready"),
            ("serve", _SERVES, 1.0, "parent", "KILL", r"unknown ready"),
            ("serve", _SERVES, 1.0, "parent", "SEGV", r"native_crash ready"),
            ("serve", _SERVES, 1.0, "parent", "TERM", r"(stopped|none) ready"),
            ("serve", _SERVES, 1.0, "parent", "INT", r"(stopped|none) ready"),
            ("serve", _SERVES, 1.0, "parent", "QUIT", r"(unknown|rank_died) ready"),
            ("load", _LOADED, 0.0, "scheduler", "KILL", r"(rank_killed|host_oom) (load|kv-pool|http-up|warm-up)"),
            ("load", _LOADED, 0.0, "scheduler", "SEGV", r"native_crash (load|kv-pool|http-up|warm-up)"),
            ("load", _LOADED, 0.0, "scheduler", "TERM", r"(rank_died|stopped) (load|kv-pool|http-up|warm-up)"),
            ("load", _LOADED, 0.0, "detokenizer", "KILL", r"(rank_killed|host_oom) (load|kv-pool|http-up|warm-up)"),
            ("load", _LOADED, 0.0, "TP1", "KILL", r"(rank_killed|host_oom|load_straggler) (load|kv-pool)"),
            ("load", _LOADED, 0.0, "TP1", "SEGV", r"native_crash (load|kv-pool)"),
            ("load", _LOADED, 0.0, "parent", "TERM", r"stopped (load|kv-pool)"),
            ("load", _LOADED, 0.0, "parent", "KILL", r"unknown .*"),
            ("launch", r"server_args=", 2.0, "scheduler", "KILL", r"(rank_killed|host_oom) .*"),
            ("launch", r"server_args=", 2.0, "parent", "TERM", r"stopped .*"),
            ("launch", r"server_args=", 0.5, "parent", "INT", r"stopped .*"),
            ("launch", r"server_args=", 1.0, "parent", "KILL", r"unknown .*"),
            ("ranks", _RANKS, 0.0, "TP1", "KILL", r"(rank_killed|host_oom) dist-init"),
        )
    ),
    # Limits and the disk
    *(
        _a(f"limit-files-{count}", "(too_many_files|none) .*", "", limits={"NOFILE": count}) for count in (48, 60, 75, 100)
    ),
    _a("limit-memlock", "none .*", "", limits={"MEMLOCK": 0}),
    _a("limit-processes", "(too_many_threads|none) .*", "", limits={"NPROC": 1}, nobody=True),
    _a("limit-space-6", "(host_memory|native_crash|too_many_threads|none) .*", "", limits={"AS": 6_000_000_000}),
    _a("limit-space-4", "(host_memory|native_crash|too_many_threads|none) .*", "", limits={"AS": 4_000_000_000}),
    _a("limit-space-kv", "host_memory kv-pool", "--max-total-tokens 4000000", limits={"AS": 9_000_000_000}),
    _a("limit-cpu", "(none|rank_killed|unknown|native_crash|rank_died) .*", "", limits={"CPU": 20}),
    _a("disk-shm", "(none|bus_error) .*", "--tp-size 2", ranks=2, tmpfs={"/dev/shm": "size=64k"}),
    _a("disk-tmp", "(disk_full|none) .*", "", tmpfs={"@RUN@/t": "size=4k,nr_inodes=1"}, env={"TMPDIR": "@RUN@/t"}),
    _a("disk-tmp-gone", "none .*", "", env={"TMPDIR": "/nonexistent"}),
    _a("disk-tmp-read-only", "(read_only|permission|none|unknown) .*", "", tmpfs={"@RUN@/t": "ro"}, env={"TMPDIR": "@RUN@/t"}),
    _a("disk-home", "none .*", "", env={"HOME": "/nonexistent/home"}, nobody=True),
    _a("disk-metrics-full", "(disk_full|bus_error) .*", "--enable-metrics", tmpfs={"@RUN@/t": "size=4k"}, env={"TMPDIR": "@RUN@/t"}),
    _a("disk-run-read-only", "none .*", "--crash-dump-folder @RUN@/t --log-requests", tmpfs={"@RUN@/t": "ro"}),
    # Network
    _a("port-taken", "http_port_busy .*", "", beside="exec timeout 70 python3 -m http.server --bind 127.0.0.1 @PORT@ >/dev/null 2>&1"),
    _a("port-70000", "(argparse|args_rejected|http_address|unknown) .*", "--port 70000"),
    _a("port-privileged", "(http_permission) .*", "--port 81", nobody=True),
    _a("host-foreign", "none dist-init", "--host 203.0.113.7"),
    _a("host-name", "none dist-init", "--host no-such-host.invalid"),
    _a("host-with-port", "(http_address|args_rejected|dist_address) .*", "--host 127.0.0.1:8000"),
    _a("host-v6", "none .*", "--host ::1"),
    _a("dist-busy", "dist_port_busy .*", "--dist-init-addr 127.0.0.1:@PORT2@",
       beside="exec timeout 70 python3 -m http.server --bind 127.0.0.1 @PORT2@ >/dev/null 2>&1"),
    _a("dist-bad", "dist_address dist-init", "--dist-init-addr nowhere"),
    _a("dist-bad-nodes", "dist_address dist-init", "--dist-init-addr nowhere --nnodes 2 --tp-size 2", ranks=2),
    _a("dist-name", "(gloo_network|rendezvous_timeout|dist_address) .*",
       "--dist-init-addr no-such-host.invalid:5000 --nnodes 2 --node-rank 1 --tp-size 2 --dist-timeout 8", ranks=2),
    _a("dist-refused", "(rendezvous_timeout) dist-init",
       "--dist-init-addr 127.0.0.1:@PORT2@ --nnodes 2 --node-rank 1 --tp-size 2 --dist-timeout 8", ranks=2),
    _a("dist-no-peer", "rendezvous_timeout dist-init",
       "--dist-init-addr 127.0.0.1:@PORT2@ --nnodes 2 --node-rank 0 --tp-size 2 --dist-timeout 8", ranks=2),
    _a("dist-no-addr", "(args_rejected|rendezvous_timeout) .*", "--nnodes 2 --node-rank 0 --tp-size 2 --dist-timeout 8", ranks=2),
    _a("dist-node-5", "(args_rejected) .*", "--dist-init-addr 127.0.0.1:@PORT2@ --nnodes 2 --node-rank 5 --tp-size 2 --dist-timeout 8",
       ranks=2),
    _a("dist-interface", "gloo_network .*", "--tp-size 2", ranks=2, env={"GLOO_SOCKET_IFNAME": "eth77"}),
    _a("proxy", "(warmup_proxy) warm-up", "", env={"http_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}),
    # Parallelism
    _a("tp3", "shards_do_not_divide load", "--tp-size 3", ranks=2, env={"SGLANG_CPU_OMP_THREADS_BIND": "0|1|0"}),
    _a("tp4", "(shards_do_not_divide|weights_shape|none) .*", "--tp-size 4", ranks=2, env={"SGLANG_CPU_OMP_THREADS_BIND": "0|1|0|1"}),
    _a("tp5", "shards_do_not_divide .*", "--tp-size 5", ranks=2, env={"SGLANG_CPU_OMP_THREADS_BIND": "0|1|0|1|0"}),
    _a("tp2-numa", "cpu_binding dist-init", "--tp-size 2"),
    _a("tp-0", "(args_rejected|argparse|unknown) .*", "--tp-size 0"),
    _a("pp9", "(pp_too_many|shards_do_not_divide|args_rejected) .*", "--pp-size 3", ranks=2, env={"SGLANG_CPU_OMP_THREADS_BIND": "0|1|0"},
       files=_config("c['num_hidden_layers'] = 2")),
    _a("pp-micro-0", "args_rejected launch", "--pp-size 2 --pp-max-micro-batch-size 0"),
    _a("pp-partition", "pp_partition load", "--pp-size 2", ranks=2, env={"SGLANG_PP_LAYER_PARTITION": "3,3"}),
    _a("pp-partition-text", "pp_partition load", "--pp-size 2", ranks=2, env={"SGLANG_PP_LAYER_PARTITION": "a,b"}),
    _a("ep-3", "(args_rejected|shards_do_not_divide|none) .*", "--tp-size 2 --ep-size 3", ranks=2),
    _a("attn-dp-3", "args_rejected .*", "--tp-size 2 --attn-dp-size 3", ranks=2),
    _a("mixed-chunk", "none .*", "--pp-size 2 --enable-mixed-chunk", ranks=2),
    # The model's configuration
    _a("config-no-arch", "(model_config_invalid|model_type_unknown) .*", "", files=_config("del c['architectures']")),
    _a("config-null-arch", "(model_config_invalid|model_type_unknown) .*", "", files=_config("c['architectures'] = None")),
    _a("config-empty-arch", "(model_config_invalid|model_type_unknown) .*", "", files=_config("c['architectures'] = []")),
    _a("config-unknown-arch", "model_type_unknown .*", "", files=_config("c['architectures'] = ['Qwen99ForCausalLM']")),
    _a("config-unknown-type", "model_type_unknown launch", "", files=_config("c['model_type'] = 'qwen99'")),
    _a("config-no-type", "model_config_invalid .*", "", files=_config("del c['model_type']")),
    _a("config-dtype", "model_config_invalid .*", "", files=_config("c['torch_dtype'] = 'float99'")),
    _a("config-vocab", "(model_config_invalid|weights_shape) .*", "", files=_config("c['vocab_size'] = -5")),
    _a("config-vocab-small", "weights_shape load", "", files=_config("c['vocab_size'] = 512")),
    _a("config-heads-0", "(model_config_invalid|unknown) .*", "", files=_config("c['num_attention_heads'] = 0")),
    _a("config-hidden-text", "model_config_invalid .*", "", files=_config("c['hidden_size'] = 'big'")),
    _a("config-hidden", "weights_shape load", "", files=_config("c['hidden_size'] = 64")),
    _a("config-layers-0", "(shards_do_not_divide|model_config_invalid) .*", "", files=_config("c['num_hidden_layers'] = 0")),
    _a("config-layers-more", "(weights_names|weights_missing|none) .*", "", files=_config("c['num_hidden_layers'] = 12")),
    _a("config-layers-fewer", "(weights_names|none) .*", "", files=_config("c['num_hidden_layers'] = 4")),
    _a("config-kv-heads", "(weights_shape|shards_do_not_divide) load", "", files=_config("c['num_key_value_heads'] = 4")),
    _a("config-kv-heads-3", "(weights_shape|shards_do_not_divide|model_config_invalid) .*", "", files=_config("c['num_key_value_heads'] = 3")),
    _a("config-act", "(model_config_invalid|unknown) .*", "", files=_config("c['hidden_act'] = 'wow'")),
    _a("config-rope", "(model_config_invalid|unknown) .*", "", files=_config("c['rope_scaling'] = {'type': 'nope', 'factor': 2}")),
    _a("config-no-hidden", "(model_config_invalid|model_config_attr|weights_shape) .*", "", files=_config("del c['hidden_size']")),
    _a("config-no-heads", "(model_config_invalid|model_config_attr|weights_shape) .*", "", files=_config("del c['num_attention_heads']")),
    _a("config-quant-unknown", "quantization .*", "", files=_config("c['quantization_config'] = {'quant_method': 'foo'}")),
    _a("config-quant-awq", "quantization .*", "", files=_config("c['quantization_config'] = {'quant_method': 'awq'}")),
    _a("config-quant-fp8", "(quantization|weights_names) .*", "", files=_config("c['quantization_config'] = {'quant_method': 'fp8'}")),
    _a("config-quant-gptq", "(quantization|weights_names) .*", "",
       files=_config("c['quantization_config'] = {'quant_method': 'gptq', 'bits': 4, 'group_size': 128, 'desc_act': False}")),
    _a("config-empty", "model_config_invalid launch", "", files="echo '{}' >config.json"),
    _a("config-list", "model_config_invalid launch", "", files="echo '[]' >config.json"),
    _a("config-zero", "model_config_invalid launch", "", files=": >config.json"),
    _a("config-cut", "model_config_invalid launch", "", files="head -c 200 config.json >x; mv x config.json"),
    _a("config-html", "model_config_invalid launch", "", files="echo '<!DOCTYPE html><html><body>Not found' >config.json"),
    _a("config-pointer", "model_config_invalid launch", "", files=f"{_POINTER} >config.json"),
    _a("config-binary", "model_config_invalid launch", "", files="head -c 3000 /dev/urandom >config.json"),
    _a("config-folder", "(model_config_invalid|model_path) launch", "", files="rm config.json; mkdir config.json"),
    _a("config-gone", "(model_path|model_config_invalid) launch", "", files="rm config.json"),
    _a("config-unreadable", "(permission|model_path) launch", "", nobody=True, keep="model/config.json"),
    _a("config-auto-map", "trust_remote launch", "", files=_config("c['model_type'] = 'mine'; c['auto_map'] = {'AutoConfig': 'my.MyConfig'}")),
    _a("config-auto-map-gone", "model_files_missing launch", "--trust-remote-code",
       files=_config("c['model_type'] = 'mine'; c['auto_map'] = {'AutoConfig': 'my.MyConfig'}")),
    _a("config-auto-map-broken", "module_missing launch", "--trust-remote-code",
       files=_config("c['model_type'] = 'mine'; c['auto_map'] = {'AutoConfig': 'my.MyConfig'}") + "\necho 'import no_such_package' >my.py"),
    _a("generation-config", "(model_config_invalid|none) .*", "", files="echo '{x' >generation_config.json"),
    _a("model-empty-folder", "(model_path|model_config_invalid) launch", "", files="rm *"),
    _a("model-is-file", "(model_path|model_config_invalid|hub_unreachable|unknown) .*", "--model-path @MODEL@/config.json"),
    _a("model-gone", "model_path launch", "--model-path /no/such/model"),
    _a("model-hub-offline", "(model_path|hub_unreachable) launch", "--model-path nobody/tiny-none"),
    _a("model-hub-unreachable", "(model_path|hub_unreachable) launch", "--model-path nobody/tiny-none",
       env={"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"}),
    _a("model-adapter", "(model_path|model_config_invalid) launch", "",
       files="rm *; echo '{\"peft_type\": \"LORA\", \"r\": 8}' >adapter_config.json"),
    # The tokenizer
    _a("tokenizer-json", "tokenizer_invalid (launch|dist-init)", "", files="echo '{broken' >tokenizer.json"),
    _a("tokenizer-other-json", "tokenizer_invalid (launch|dist-init)", "", files="echo '{}' >tokenizer.json"),
    _a("tokenizer-html", "tokenizer_invalid (launch|dist-init)", "", files="echo '<html>' >tokenizer.json"),
    _a("tokenizer-pointer", "tokenizer_invalid (launch|dist-init)", "", files=f"{_POINTER} >tokenizer.json"),
    _a("tokenizer-zero", "tokenizer_invalid (launch|dist-init)", "", files=": >tokenizer.json"),
    _a("tokenizer-gone", "tokenizer_invalid (launch|dist-init)", "", files="rm tokenizer.json"),
    _a("tokenizer-both-gone", "(tokenizer_invalid|unknown) .*", "", files="rm tokenizer*.json"),
    _a("tokenizer-class", "(tokenizer_invalid|none) .*", "", files=_json("tokenizer_config.json", "c['tokenizer_class'] = 'WowTokenizer'")),
    _a("tokenizer-config", "tokenizer_invalid (launch|dist-init)", "", files="echo '{broken' >tokenizer_config.json"),
    _a("tokenizer-path", "(tokenizer_invalid|model_path) (launch|dist-init)", "--tokenizer-path /no/such"),
    _a("tokenizer-template", "none .*", "", files=_json("tokenizer_config.json", "c['chat_template'] = '{% for x in %}'")),
    _a("template-gone", "chat_template .*", "--chat-template /no/such.jinja"),
    _a("template-bad", "none .*", "--chat-template @MODEL@/bad.jinja", files="echo '{% for x in %}' >bad.jinja"),
    _a("template-bad-json", "chat_template .*", "--chat-template @MODEL@/bad.json", files="echo '{' >bad.json"),
    _a("template-name", "chat_template .*", "--chat-template nonesuch"),
    # Weights
    _a("weights-shard-gone", "weights_missing load", "", files=f"rm {_SHARD}"),
    _a("weights-index-names-more", "weights_missing load", "",
       files=_json("model.safetensors.index.json", "c['weight_map']['model.extra.weight'] = 'model-00007-of-00007.safetensors'")),
    _a("weights-index-broken", "(weights_corrupt|weights_index) load", "", files="echo '{' >model.safetensors.index.json"),
    _a("weights-index-list", "(weights_corrupt|weights_index) load", "", files="echo '[]' >model.safetensors.index.json"),
    _a("weights-index-gone", "none .*", "", files="rm model.safetensors.index.json"),
    _a("weights-zero-byte", "weights_corrupt load", "", files=f": >{_SHARD}"),
    _a("weights-pointer", "weights_corrupt load", "", files=f"{_POINTER} >{_SHARD}"),
    _a("weights-html", "weights_corrupt load", "", files=f"echo '<!DOCTYPE html><html><body>Entry not found</body></html>' >{_SHARD}"),
    _a("weights-garbage", "weights_corrupt load", "", files=f"head -c 100000 /dev/urandom >{_SHARD}"),
    _a("weights-cut", "weights_corrupt load", "", files=f"truncate -s 100000 {_SHARD}"),
    _a("weights-longer", "weights_corrupt load", "", files=f"echo more >>{_SHARD}"),
    _a("weights-cut-early", "weights_corrupt load", "", files=f"truncate -s 5 {_SHARD}"),
    _a("weights-dangling", "weights_missing load", "", files=f"rm {_SHARD}; ln -s /no/such {_SHARD}"),
    _a("weights-folder", "weights_.* load", "", files=f"rm {_SHARD}; mkdir {_SHARD}"),
    _a("weights-none", "weights_missing load", "", files="rm *.safetensors model.safetensors.index.json"),
    _a("weights-all-gone", "weights_missing load", "", files="rm *.safetensors"),
    _a("weights-unreadable", "(weights_missing|permission) load", "", nobody=True, keep=f"model/{_SHARD}"),
    _a("weights-twice", "(weights_names|none) .*", "", files=f"cp {_SHARD} copy.safetensors"),
    _a("weights-bin", "(weights_missing|weights_corrupt|unknown) load", "", files="rm *.safetensors *.index.json; echo x >pytorch_model.bin"),
    _a("weights-bin-pickle", "(weights_corrupt|unknown) load", "",
       files="rm *.safetensors *.index.json; python3 -c \"import pickle; pickle.dump(print, open('pytorch_model.bin', 'wb'))\""),
    # The way of loading
    _a("format-gguf", "load_format load", "--load-format gguf"),
    _a("format-dummy", "none .*", "--load-format dummy"),
    _a("format-unknown", "argparse launch", "--load-format wow"),
    _a("format-pt", "weights_missing load", "--load-format pt"),
    _a("format-npcache", "(weights_missing|weights_corrupt) load", "--load-format npcache"),
    _a("format-sharded", "load_format load", "--load-format sharded_state"),
    _a("format-bnb", "(quantization|module_missing) .*", "--load-format bitsandbytes"),
    _a("format-mistral", "weights_missing load", "--load-format mistral"),
    _a("format-layered", "load_format load", "--load-format layered"),
    _a("format-remote", "load_format load", "--load-format remote"),
    _a("loader-extra", "json_argument load", "--model-loader-extra-config {bad"),
    _a("custom-loader", "none .*", "--custom-weight-loader no.such.loader"),
    _a("model-impl", "none .*", "--model-impl transformers"),
    # Quantization, kernels
    *(
        _a(f"quant-{name}", "(quantization|backend_arch|module_missing|weights_names|argparse|no_gpu|none) .*", f"--quantization {name}")
        for name in (
            "fp8", "awq", "gptq", "awq_marlin", "gptq_marlin", "gguf", "w8a8_int8", "w8a8_fp8", "bitsandbytes", "mxfp4", "modelopt",
            "modelopt_fp4", "blockwise_int8", "moe_wna16", "compressed-tensors", "marlin", "petit_nvfp4", "wow",
        )
    ),
    _a("torchao", ".*", "--torchao-config int4wo-128"),
    *(
        _a(f"attention-{name}", "(none|backend_unsupported|backend_arch|module_missing|pkg_version|tllmgen_arch|no_gpu|args_rejected|argparse) .*",
           f"--attention-backend {name}")
        for name in ("flashinfer", "fa3", "triton", "flashmla", "trtllm_mla", "intel_amx", "flex_attention", "wow")
    ),
    _a("sampling-flashinfer", "(module_missing|backend_unsupported|args_rejected|none) .*", "--sampling-backend flashinfer"),
    _a("grammar-outlines", "(module_missing|backend_unsupported|none) .*", "--grammar-backend outlines"),
    _a("grammar-wow", "argparse .*", "--grammar-backend wow"),
    _a("kv-fp8", "none .*", "--kv-cache-dtype fp8_e4m3"),
    _a("kv-wow", "argparse .*", "--kv-cache-dtype wow"),
    _a("dtype-float8", "argparse .*", "--dtype float8"),
    _a("device-cuda", "no_gpu .*", "--device cuda"),
    _a("device-xpu", "(no_gpu|unknown) .*", "--device xpu"),
    _a("device-npu", "module_missing .*", "--device npu"),
    _a("device-none", "(no_gpu|unknown) .*", "--device auto"),
    _a("cpu-engine", "(sgl_kernel_import|module_missing) .*", "", env={"SGLANG_USE_CPU_ENGINE": "1"}),
    _a("compile", "none .*", "--enable-torch-compile"),
    # Speculative, LoRA, other features
    _a("spec-no-draft", "(args_rejected|draft_model) .*", "--speculative-algorithm EAGLE"),
    _a("spec-eagle3-no-draft", "(args_rejected|draft_model) .*", "--speculative-algorithm EAGLE3 --speculative-num-steps 3 "
       "--speculative-eagle-topk 1 --speculative-num-draft-tokens 4"),
    _a("spec-draft-gone", "(model_path|draft_model) .*", "--speculative-algorithm EAGLE --speculative-draft-model-path /no/such"),
    _a("spec-draft-wrong", "(draft_model|model_type_unknown|weights_.*|args_rejected) .*",
       "--speculative-algorithm EAGLE --speculative-draft-model-path @MODEL@ --speculative-num-steps 3 --speculative-eagle-topk 1 "
       "--speculative-num-draft-tokens 4"),
    _a("spec-ngram", "module_missing .*", "--speculative-algorithm NGRAM"),
    _a("spec-wow", "(argparse|args_rejected) .*", "--speculative-algorithm WOW"),
    _a("spec-standalone", "(args_rejected|draft_model) .*", "--speculative-algorithm STANDALONE"),
    _a("lora-gone", "(lora_adapter|model_path) .*", "--enable-lora --lora-paths a=/no/such"),
    _a("lora-no-rank", "(lora_adapter|args_rejected) .*", "--enable-lora"),
    _a("lora-empty", "(lora_adapter) .*", "--enable-lora --lora-paths a=@MODEL@/lora", files="mkdir lora; echo '{}' >lora/adapter_config.json"),
    _a("lora-no-weights", "(lora_adapter|weights_missing) .*", "--enable-lora --lora-paths a=@MODEL@/lora",
       files="mkdir lora; echo '{\"peft_type\": \"LORA\", \"r\": 8, \"lora_alpha\": 16, \"target_modules\": [\"q_proj\"]}' "
       ">lora/adapter_config.json"),
    _a("lora-rank", "(lora_adapter|args_rejected) .*", "--enable-lora --lora-paths a=@MODEL@/lora --max-lora-rank 4 --lora-target-modules q_proj",
       files="mkdir lora; echo '{\"peft_type\": \"LORA\", \"r\": 64, \"lora_alpha\": 16, \"target_modules\": [\"q_proj\"]}' "
       ">lora/adapter_config.json"),
    _a("lora-same-name", "(lora_adapter|args_rejected) .*", "--enable-lora --lora-paths a=@MODEL@/lora a=@MODEL@/lora",
       files="mkdir lora; echo '{\"peft_type\": \"LORA\", \"r\": 8, \"lora_alpha\": 16, \"target_modules\": [\"q_proj\"]}' "
       ">lora/adapter_config.json"),
    _a("embedding", "none .*", "--is-embedding"),
    _a("multimodal", "none .*", "--enable-multimodal"),
    _a("disagg-prefill", "mooncake_init .*", "--disaggregation-mode prefill"),
    _a("disagg-nixl", "(module_missing|no_gpu) .*", "--disaggregation-mode decode --disaggregation-transfer-backend nixl"),
    _a("hicache", "no_gpu kv-pool", "--enable-hierarchical-cache --hicache-ratio 2"),
    _a("hicache-storage", "(mooncake_init|module_missing) .*", "--enable-hierarchical-cache --hicache-storage-backend mooncake"),
    _a("deepep", "none .*", "--moe-a2a-backend deepep"),
    _a("dp-attention", "unknown .*", "--tp-size 2 --attn-dp-size 2", ranks=2),
    _a("dllm", "unknown launch", "--dllm-algorithm LowConfidence"),
    _a("deterministic", "args_rejected launch", "--enable-deterministic-inference"),
    _a("lmcache", "(module_missing) .*", "--enable-lmcache"),
    # Values
    _a("flag-unknown", "argparse launch", "--no-such-flag 3"),
    _a("flag-value", "argparse launch", "--tp-size two"),
    _a("flag-ambiguous", "argparse launch", "--cuda-graph-max-bs 8"),
    _a("flag-no-value", "argparse launch", "--tp-size"),
    _a("flag-no-model", "(argparse|args_rejected) launch", "--model-path"),
    _a("policy", "argparse launch", "--schedule-policy wow"),
    _a("context", "context_too_long .*", "--context-length 1000000"),
    _a("context-0", "unknown kv-pool", "--context-length 0"),
    _a("context-negative", "unknown kv-pool", "--context-length -5"),
    _a("mem-fraction-small", "(not_enough_mem|no_room_for_requests|none) .*", "--mem-fraction-static 0.0001"),
    _a("mem-fraction-negative", "(not_enough_mem|no_room_for_requests|none|args_rejected) .*", "--mem-fraction-static -1"),
    _a("mem-no-tokens", "(not_enough_mem|no_room_for_requests) .*", "--mem-fraction-static 0.000001 --max-total-tokens 100000000"),
    _a("tokens-0", "(no_room_for_requests|not_enough_mem) .*", "--max-total-tokens 0"),
    _a("tokens-1", "no_room_for_requests kv-pool", "--max-total-tokens 1"),
    _a("tokens-negative", "(no_room_for_requests|not_enough_mem) .*", "--max-total-tokens -5"),
    _a("requests-0", "(no_room_for_requests|none) .*", "--max-running-requests 0"),
    _a("requests-negative", "(none|stopped) .*", "--max-running-requests -3"),
    _a("override-bad", "json_argument .*", "--json-model-override-args {bad"),
    _a("override-list", "json_argument .*", "--json-model-override-args [1]"),
    _a("override-layers", "none .*", '--json-model-override-args {"num_hidden_layers":2}'),
    _a("chunk-3", "args_rejected .*", "--chunked-prefill-size 3 --page-size 16"),
    _a("page-0", "unknown launch", "--page-size 0"),
    _a("page-negative", "unknown kv-pool", "--page-size -4"),
    *(
        _a(f"size-{flag}-{value}", "(args_rejected|unknown|not_enough_mem|warmup_fail|watchdog|lora_adapter|none) .*", f"--{flag} {value}")
        for flag, value in (
            ("attn-cp-size", "-2"), ("attn-cp-size", "0"), ("decode-log-interval", "0"), ("stream-interval", "0"), ("stream-interval", "-1"),
            ("max-prefill-tokens", "0"), ("chunked-prefill-size", "0"), ("chunked-prefill-size", "-5"), ("max-queued-requests", "0"),
            ("watchdog-timeout", "0"), ("dp-size", "0"), ("ep-size", "0"), ("nnodes", "0"), ("moe-dp-size", "0"), ("gpu-id-step", "0"),
            ("schedule-conservativeness", "-1"), ("max-loras-per-batch", "0"), ("base-gpu-id", "-1"), ("watchdog-timeout", "-5"),
        )
    ),
    _a("name-colon", "args_rejected .*", "--served-model-name a:b"),
    _a("reasoning-parser", "(argparse|reasoning_parser) .*", "--reasoning-parser wow"),
    _a("tool-parser", "(argparse|reasoning_parser) .*", "--tool-call-parser wow"),
    _a("log-level", "unknown launch", "--log-level wow"),
    _a("config-file-gone", "args_rejected launch", "--config /no/such.yaml"),
    _a("config-file-bad", "config_file launch", "--config @MODEL@/bad.yaml", files="printf 'a: [1\\n' >bad.yaml"),
    _a("config-file-unknown", "argparse .*", "--config @MODEL@/x.yaml", files="printf 'no-such-flag: 1\\n' >x.yaml"),
    _a("ssl-gone", "(ssl|unknown|args_rejected) .*", "--ssl-keyfile /no/key.pem --ssl-certfile /no/cert.pem"),
    _a("ssl-bad", "unknown .*", "--ssl-keyfile @MODEL@/config.json --ssl-certfile @MODEL@/config.json"),
    _a("ssl-key-only", "args_rejected launch", "--ssl-keyfile /no/key.pem"),
    _a("sampling-defaults", ".*", "--sampling-defaults wow"),
    _a("preferred-sampling", "argparse launch", "--preferred-sampling-params {bad"),
    _a("download-dir", "none .*", "--download-dir /proc/none"),
    _a("revision", "none .*", "--revision no-such"),
    _a("metrics-dir", "unknown launch", "--enable-metrics", env={"PROMETHEUS_MULTIPROC_DIR": "/proc/none"}),
    _a("tokenizer-workers", "args_rejected launch", "--tokenizer-worker-num 0"),
    _a("cuda-graph-config", "argparse launch", "--cuda-graph-config {bad"),
    _a("env-text", "none .*", "", env={"SGLANG_HEALTH_CHECK_TIMEOUT": "soon"}),
    _a("env-warmup", "warmup_fail warm-up", "", env={"SGLANG_WARMUP_TIMEOUT": "0.001"}),
    _a("watchdog", "(watchdog|none|health_fail) .*", "--watchdog-timeout 3", env={"SGLANG_TEST_STUCK_SCHEDULER_INIT": "20"}, limit=60.0),
    _a("stuck-detokenizer", ".*", "--watchdog-timeout 5", env={"SGLANG_TEST_STUCK_DETOKENIZER": "30"}, limit=60.0),
    _a("stuck-tokenizer", ".*", "--watchdog-timeout 5 --soft-watchdog-timeout 5", env={"SGLANG_TEST_STUCK_TOKENIZER": "30"}, limit=60.0),
    _a("crash-serving", ".*", "", env={"SGLANG_TEST_CRASH_AFTER_STREAM_OUTPUTS": "1"}, limit=60.0),
    # Packages
    *(
        _a(f"hide-{name}", f"{expect} launch", "", hide=(name,))
        for name, expect in (
            ("sglang", "module_missing"), ("transformers", "module_missing"), ("zmq", "module_missing"), ("uvloop", "module_missing"),
            ("orjson", "module_missing"), ("safetensors", "module_missing"), ("numpy", "module_missing"), ("torch", "module_missing"),
            ("tokenizers", "module_missing"), ("setproctitle", "module_missing"), ("sglang.srt.managers.scheduler", "module_missing"),
            ("sglang.srt.models.qwen3", "(model_type_unknown|module_missing)"), ("interegular", "(none|module_missing)"), ("xgrammar", "module_missing"),
            ("uvicorn", "module_missing"), ("sentencepiece", "(none|module_missing)"), ("jinja2", "(none|module_missing)"),
        )
    ),
    _a("broken-transformers", "transformers_mismatch launch", "", hide=("transformers=",)),
    _a("broken-transformers-2", "transformers_mismatch launch", "", hide=("transformers=__version__ = '4.0.0'",)),
    _a("broken-torch", "module_missing|.* launch", "", hide=("torch=raise ImportError('libcudart.so.13: cannot open shared object file: "
       "No such file or directory')",)),
    _a("broken-torchvision", "(module_missing|extension_abi) launch", "",
       hide=("torchvision=raise RuntimeError('operator torchvision::nms does not exist')",)),
    _a("broken-zmq", "(module_missing|.*) launch", "", hide=("zmq=",)),
    _a("broken-syntax", ".* launch", "", hide=("orjson=def x(:",)),
    _a("shadowed", ".* launch", "", hide=("tokenizers=", )),
)  # fmt: skip
