"""Absolute encodings against those of transformers' own modules."""

import pytest
import torch

import posenc
from tolerances import assert_near


def test_table_of_vit_mae():
    """Columns come first, and the class token has zeros."""
    from transformers import ViTMAEConfig
    from transformers.models.vit_mae.modeling_vit_mae import ViTMAEEmbeddings

    config = ViTMAEConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=64, patch_size=16
    )
    embeddings = ViTMAEEmbeddings(config)
    embeddings.initialize_weights()
    theirs = embeddings.position_embeddings[0]
    rows, columns = torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")
    positions = torch.stack([columns.flatten(), rows.flatten()])
    ours = posenc.nn.Sinusoidal(32, num_axes=2, layout="concatenated")(torch.zeros(16, 32), positions)
    assert_near(ours, theirs[1:].detach(), scale=10)
    assert (theirs[0] == 0).all()


@pytest.mark.parametrize(("height", "width"), [(64, 64), (96, 48), (32, 80)])
def test_interpolated_table_of_vit(height, width):
    from transformers import ViTConfig
    from transformers.models.vit.modeling_vit import ViTModel

    config = ViTConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=64, patch_size=16
    )
    embeddings = ViTModel(config).embeddings
    torch.nn.init.normal_(embeddings.position_embeddings)
    grid = (height // 16, width // 16)
    theirs = embeddings.interpolate_pos_encoding(torch.zeros(1, 1 + grid[0] * grid[1], 32), height, width)[0]
    module = posenc.nn.LearnedAbsolute(17, 32)
    module.load_state_dict({"weight": embeddings.position_embeddings[0]})
    assert_near(module.resize(grid, prefix=1).weight.detach(), theirs.detach(), scale=4)
