#pragma once

namespace megatron {

// Opens /dev/null at each of the file descriptors 0, 1 and 2 that is closed, so that no file which is
// opened later gets that number and, with it, what is printed. Input from it and output to it still
// fail, as on a closed descriptor. To be called before anything is opened.
void occupy_standard_streams();

}  // namespace megatron
