all("main table").forEach(makeSortable);
useSwitches();
all("figure").forEach(useHover);
useDownloads();
