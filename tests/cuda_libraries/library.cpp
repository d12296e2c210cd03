// A stand-in for one of NVIDIA's libraries: it has only a version.
#if defined(TAKES_A_POINTER)
extern "C" int FUNCTION(int* version) {
  *version = VERSION;
  return 0;
}
#elif defined(TAKES_POINTERS)
extern "C" int FUNCTION(int* major, int* minor) {
  *major = VERSION / 10000;
  *minor = VERSION % 10000 / 100;
  return 0;
}
#else
extern "C" unsigned long FUNCTION() { return VERSION; }
#endif
#ifdef CUDA
extern "C" unsigned long cudnnGetCudartVersion() { return CUDA; }
#endif
