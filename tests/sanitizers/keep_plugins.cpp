// In builds with the address sanitizer: plugins stay loaded, so that leaks of Open MPI's are
// reported with their module's name, by which openmpi.supp knows them.
extern "C" int dlclose(void*) { return 0; }
