// Plays one of NVIDIA's libraries: it tells a version and nothing else.
#ifdef TAKES_A_POINTER
extern "C" int FUNCTION(int* version) {
  *version = VERSION;
  return 0;
}
#else
extern "C" unsigned long FUNCTION() { return VERSION; }
#endif
