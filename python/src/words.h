// The words that Python gives for the values of the C++ library's enums.
#pragma once

#include <moetap/drafts.h>
#include <moetap/endpoint.h>
#include <moetap/slots.h>
#include <moetap/step.h>
#include <moetap/topology.h>
#include <moetap/weight_type.h>

#include "python/src/choice.h"

MOETAP_WORDS(moetap::WeightType, "the weight type", "'float32', 'bfloat16'",
             {{"float32", moetap::WeightType::float32},
              {"bfloat16", moetap::WeightType::bfloat16}});

MOETAP_WORDS(moetap::IdType, "dtype", "'uint8', 'uint16', 'int16', 'int32', 'int64'",
             {{"uint8", moetap::IdType::uint8},
              {"uint16", moetap::IdType::uint16},
              {"int16", moetap::IdType::int16},
              {"int32", moetap::IdType::int32},
              {"int64", moetap::IdType::int64}});

MOETAP_WORDS(moetap::Drafts, "drafts", "'tree', 'chain'",
             {{"tree", moetap::Drafts::tree}, {"chain", moetap::Drafts::chain}});

MOETAP_WORDS(moetap::ShmLayout, "shm_layout", "'native', 'wire'",
             {{"native", moetap::ShmLayout::native}, {"wire", moetap::ShmLayout::wire}});

MOETAP_WORDS(moetap::RankLayout, "layout", "'local', 'concatenated', 'padded'",
             {{"local", moetap::RankLayout::local},
              {"concatenated", moetap::RankLayout::concatenated},
              {"padded", moetap::RankLayout::padded}});

MOETAP_WORDS(moetap::SequenceParts, "parts", "'none', 'gathered', 'published'",
             {{"none", moetap::SequenceParts::none},
              {"gathered", moetap::SequenceParts::gathered},
              {"published", moetap::SequenceParts::published}});

MOETAP_WORDS(moetap::KvCacheGroup::Kind, "the kind of a KV-cache group",
             "'full_attention', 'mla', 'sliding_window', 'chunked_local', 'mamba', 'uniform'",
             {{"full_attention", moetap::KvCacheGroup::Kind::full_attention},
              {"mla", moetap::KvCacheGroup::Kind::mla},
              {"sliding_window", moetap::KvCacheGroup::Kind::sliding_window},
              {"chunked_local", moetap::KvCacheGroup::Kind::chunked_local},
              {"mamba", moetap::KvCacheGroup::Kind::mamba},
              {"uniform", moetap::KvCacheGroup::Kind::uniform}});
