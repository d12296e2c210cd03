// Every kind of feed-forward.
#pragma once

#include "models/decoder/feed_forwards/dense.h"
#include "models/decoder/feed_forwards/experts.h"
#include "models/decoder/simple.h"
