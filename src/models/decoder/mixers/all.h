// Every kind of mixer.
#pragma once

#include "models/decoder/mixers/attention.h"
#include "models/decoder/mixers/hybrid.h"
#include "models/decoder/mixers/latent_attention.h"
#include "models/decoder/mixers/shared_block.h"
#include "models/decoder/mixers/state_space.h"
#include "models/decoder/simple.h"
