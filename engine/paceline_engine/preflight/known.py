"""What vLLM 0.33 can draft with, read from its source; vllm/ is the package's folder.

Another version may know more: what is not listed here is a warning there, never a failure.
"""

from __future__ import annotations

VERSIONS = ("0.32", "0.33")
"""Versions that the lists hold for."""
SOURCE = "https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/{file}"
REGISTRY = SOURCE.format(file="model_executor/models/registry.py")
SPECULATIVE = SOURCE.format(file="config/speculative.py")

HEADS: dict[str, frozenset[str]] = {
    "eagle": frozenset(
        {
            "EagleCohereForCausalLM",
            "EagleDeepSeekMTPModel",
            "EagleLlama4ForCausalLM",
            "EagleLlamaForCausalLM",
            "EagleMiniCPMForCausalLM",
            "EagleMistralForCausalLM",
            "EagleMistralLarge3ForCausalLM",
        }
    ),
    "eagle3": frozenset(
        {
            "Eagle3DeepseekV2ForCausalLM",
            "Eagle3DeepseekV3ForCausalLM",
            "Eagle3LlamaForCausalLM",
            "Eagle3MiniMaxM2ForCausalLM",
            "Eagle3Qwen2_5vlForCausalLM",
            "Eagle3Qwen3ForCausalLM",
            "Eagle3Qwen3vlForCausalLM",
            "LlamaForCausalLMEagle3",
            "PEagleDraftModel",
            "PeagleLlamaForCausalLM",
            "PeagleQwen3ForCausalLM",
        }
    ),
    "dflash": frozenset(
        {
            "DFlash2BeamDraftModel",
            "DFlash2DraftModel",
            "DFlashDraftModel",
            "DFlashLagunaForCausalLM",
            "DFlashMuseGlimmerAssistantModel",
            "DFlashQwen3XPressModel",
            "LiLiCorrDraftModel",
        }
    ),
    "dspark": frozenset(
        {
            "DSparkDraftModel",
            "DSparkV41DraftModel",
            "Gemma4DSparkModel",
            "K3DSparkModel",
            "MuseSparkDSparkModel",
            "Qwen3DSparkModel",
            "Qwen3OmniDSparkModel",
        }
    ),
}
"""Method -> architectures of draft heads, as vLLM names them (registry.py: _SPECULATIVE_DECODING_MODELS)."""

MTP_ARCHITECTURES = frozenset(
    {
        "Glm4MoeForCausalLM",
        "Glm4MoeLiteForCausalLM",
        "GlmOcrForConditionalGeneration",
        "MiMoForCausalLM",
        "MiMoV2FlashForCausalLM",
        "MiMoV2ForCausalLM",
        "MiMoV2OmniForCausalLM",
        "MiniMaxM3SparseForConditionalGeneration",
        "Step3p5ForCausalLM",
        "Step3p7ForConditionalGeneration",
        "Step5ForCausalLM",
        "Step5ForConditionalGeneration",
    }
)
MTP_TYPES = frozenset(
    {
        "bailing_hybrid",
        "bailing_hybrid_v3",
        "deepseek_v3",
        "deepseek_v32",
        "deepseek_v4",
        "dots3_note",
        "ernie4_5_moe",
        "exaone_moe",
        "exaone4_5",
        "glm5_next",
        "glm_moe_dsa",
        "hy_v3",
        "hy_v4",
        "inkling_mm_model",
        "inkling_model",
        "intern_s2_preview",
        "interns2_mobius",
        "kimi_k3",
        "longcat_flash",
        "minimax_m3_mtp",
        "minimax_m3_vl",
        "nemotron_h",
        "nemotron_h_puzzle",
        "pangu_ultra_moe",
        "qwen3_5",
        "qwen3_5_moe",
        "qwen3_5_moe_text",
        "qwen3_5_text",
        "qwen3_next",
        "qwen4_exp",
        "qwen4_exp_text",
        "step3p5",
        "step3p7",
        "step5",
        "step5_vl",
    }
)
"""Architectures and types of targets with modules for multi-token prediction (config/speculative.py:
SpeculativeConfig.hf_config_override)."""
MTP_UNCOUNTED = frozenset(
    {"dots3_note", "longcat_flash", "minimax_m3_mtp", "minimax_m3_vl", "qwen3_next", "step3p5", "step3p7"}
)
"""Types of which the configuration need not say how many modules there are."""

WITHOUT_EAGLE3 = frozenset(
    {
        "BloomForCausalLM",
        "Cohere2ForCausalLM",
        "CohereForCausalLM",
        "DbrxForCausalLM",
        "FalconForCausalLM",
        "GPT2LMHeadModel",
        "Gemma2ForCausalLM",
        "Gemma3ForCausalLM",
        "Gemma3ForConditionalGeneration",
        "GemmaForCausalLM",
        "Glm4ForCausalLM",
        "Glm4MoeForCausalLM",
        "InternLM2ForCausalLM",
        "JambaForCausalLM",
        "Mamba2ForCausalLM",
        "MixtralForCausalLM",
        "OPTForCausalLM",
        "Qwen2MoeForCausalLM",
        "StableLmForCausalLM",
    }
)
"""Targets that hand out no hidden states of their layers: no class of theirs is a SupportsEagle3
(model_executor/models/interfaces.py)."""
NEEDS_HIDDEN_STATES = ("eagle3", "dflash", "dspark")


def head_of(method: str, architecture: str) -> str:
    """What vLLM calls a draft head of that architecture (transformers_utils/configs/eagle.py: EAGLEConfig)."""
    if method == "eagle":
        return architecture if architecture.startswith("Eagle") else f"Eagle{architecture}"
    if method == "eagle3":
        own = architecture.startswith("Eagle3") or architecture.endswith("Eagle3")
        return architecture if own else f"Eagle3{architecture}"
    if method == "dflash":
        own = architecture.startswith("DFlash") or architecture.endswith("DFlash")
        return architecture if own or architecture == "LiLiCorrDraftModel" else f"DFlash{architecture}"
    return architecture
