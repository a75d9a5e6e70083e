version: str
torch_version: str
torch_cxx11_abi: int
