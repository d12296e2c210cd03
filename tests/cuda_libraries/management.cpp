// A stand-in for NVIDIA's management library, with one GPU whose clock falls with every query.
#include <cstring>

extern "C" {
unsigned clock_now = 1980;

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* pci, void** device) {
  static int only;
  *device = &only;
  return strcmp(pci, "0000:00:00.0") == 0 ? 0 : 6;
}
int nvmlDeviceGetClockInfo(void* device, int kind, unsigned* mhz) {
  (void)device;
  if (kind != 1) return 2;
  *mhz = clock_now;
  clock_now -= 15;
  return 0;
}
int nvmlDeviceGetMaxClockInfo(void* device, int kind, unsigned* mhz) {
  (void)device;
  *mhz = 1980;
  return kind == 1 ? 0 : 2;
}
int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
  (void)device;
  *milliwatts = 612345;
  return 0;
}
int nvmlDeviceGetEnforcedPowerLimit(void* device, unsigned* milliwatts) {
  (void)device;
  *milliwatts = 700000;
  return 0;
}
int nvmlDeviceGetTemperature(void* device, int sensor, unsigned* celsius) {
  (void)device;
  *celsius = 61;
  return sensor == 0 ? 0 : 2;
}
}  // extern "C"
